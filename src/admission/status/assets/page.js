"use strict";

import { Plot, element } from "./plots.js";

const POLL_MS = 1000;
const PATIENCE_MS = 5000;
const byId = (id) => document.getElementById(id);

function formatBytes(sizeBytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let size = sizeBytes;
  while (Math.abs(size) >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit && Math.abs(size) < 10 ? size.toFixed(1) : Math.round(size)} ${units[unit]}`;
}

const atMost = (seconds) => (seconds === null ? "minutes" : formatSeconds(seconds));
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const formatCount = (count) => compact.format(count);
const formatPercent = (share) => (share === null ? "?" : `${Math.round(share * 100)} %`);

function formatSeconds(seconds) {
  if (seconds < 1) return `${Math.ceil(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

/** Why connections are not read; the words are the server's. */
const REASONS = {
  memory: "The pool has no memory for what comes next: make it larger, or see who holds it.",
  request: "A request of the connection is being worked on, and the next one waits for it.",
  requests: "As many requests are being worked on as may be at a time, or as a turn of the reactor has time for.",
  responses: "The peer does not take its responses.",
  quota: "The client is over its quota, and waits until that is paid.",
  "sent quota": "The client has been sent more than its quota.",
  opening: "Its address opens connections too fast.",
  protocol: "The server's own protocol has paused it.",
  unanswered: "So many of its Produce requests wait for the disk that no more are read.",
  upstream: "The node behind the gateway does not take what is sent to it.",
  draining: "The server stops: what was read is answered, and then the connection ends.",
  closing: "It closes after the next response.",
};
const reasonOf = (name) => REASONS[name] ?? "";

/** Those that are explained below the connections, since not all can point at what has a tooltip. */
const seenReasons = new Set();

/** Answers of a site; those that refuse are not counted among others of their class. */
const STATUSES = ["2xx", "3xx", "4xx", "413", "429", "5xx", "503", "left"];
const MINOR_STATUSES = ["3xx", "413", "left"];

/** What is plotted, each with the part of the snapshot that it needs: servers differ in what they have. */
const PLOTTED = [
  ["pool", "Memory pool", { format: formatBytes, isBinary: true }, (now) => ({ used: now.pool.usedBytes })],
  ["ledger", "Where memory is", { format: formatBytes, isBinary: true, isStacked: true }, (now) => now.ledger],
  ["requests", "Requests a second", { format: formatCount }, (now) => ({ read: rateOf(now, (each) => each.requests.read) })],
  ["responses", "Answers a second, by status", { format: formatCount }, (now) => Object.fromEntries(
    STATUSES.filter((status) => status in now.responses)
      .map((status) => [status, rateOf(now, (each) => each.responses?.[status] ?? 0)]))],
  ["traffic", "Bytes a second", { format: formatBytes, isBinary: true },
    (now) => ({ in: rateOf(now, (each) => each.traffic.inBytes), out: rateOf(now, (each) => each.traffic.outBytes) })],
  ["muted", "Connections not read", { format: formatCount, explain: reasonOf }, (now) => now.muted],
  ["throttled", "Clients over a quota", { format: formatCount }, (now) => ({ clients: now.throttled.count })],
  ["purgatory", "Requests that wait", { format: formatCount },
    (now) => ({ watched: now.purgatory.watched, "with a timeout": now.purgatory.delayed })],
  ["groups", "Lag of groups, in records", { format: formatCount }, (now) => ({ lag: now.groups.lagRecords })],
  ["process", "Process memory", { format: formatBytes, isBinary: true },
    (now) => ({ resident: now.process.residentBytes, "without files": now.process.privateBytes })],
];
const plots = new Map();

let before = null;
let lostSince = null;

/** How fast a counter grows; nothing before there are two looks at the same server. */
function rateOf(now, read) {
  const isSame = before !== null && now.uptimeSeconds > before.uptimeSeconds;
  return isSame ? Math.max((read(now) - read(before)) / (now.uptimeSeconds - before.uptimeSeconds), 0) : 0;
}

/** How busy one of several processes is; not known of one that does not answer, or did not before. */
function loadOf(now, { pid }) {
  const usedBy = (state) => (state.processes ?? []).find((each) => each.pid === pid)?.cpuSeconds ?? null;
  const isKnown = before !== null && usedBy(before) !== null && usedBy(now) !== null;
  return formatPercent(isKnown ? rateOf(now, usedBy) : null);
}

function plot(now) {
  for (const [part, title, options, valuesOf] of PLOTTED) {
    if (!(part in now)) continue;
    if (!plots.has(title)) plots.set(title, new Plot(byId("plots"), title, options));
    plots.get(title).add(now.atSeconds * 1000, valuesOf(now), part === "pool" ? (now.pool.sizeBytes ?? null) : null);
  }
}

let hasChosen = false;

function draw() {
  const span = byId("span");
  if (!hasChosen) {
    // Of a server that has just started an hour would be empty.
    const knownMs = Math.max(...[...plots.values()].map((each) => each.knownMs));
    const fitting = [...span.options].findLast((each) => Number(each.value) * 1000 >= knownMs);
    span.value = (fitting ?? span.options[0]).value;
  }
  plots.forEach((each) => each.show(Number(span.value) * 1000));
}

/** What has not changed stays, with what is selected in it or has the focus. */
function keep(parent, children) {
  children.forEach((child, index) => {
    const old = parent.children[index];
    if (old === undefined) parent.append(child);
    else if (child.nodeName === "TR") keep(old, [...child.cells]);
    else if (!old.isEqualNode(child)) old.replaceWith(child);
  });
  while (parent.children.length > children.length) parent.lastElementChild.remove();
}

function fill(id, emptySentence, rows) {
  const body = byId(id);
  const columns = body.parentElement.tHead.rows[0].cells.length;
  const filled = rows.length ? rows : [[element("td", { colspan: columns, class: "faint" }, emptySentence)]];
  keep(body, filled.map((cells) => element("tr", {}, ...cells)));
}

const cell = (...children) => element("td", {}, ...children);
const number = (...children) => element("td", { class: "number" }, ...children);
const minor = (...children) => element("td", { class: "number minor" }, ...children);

/** Long words, with places to break them in a narrow column. */
const breakable = (text) => text.split(/(?<=[_=:.])/).flatMap((part) => [part, element("wbr")]);

function nameOf({ user, clientId, ip }) {
  const rest = [user, ip].filter(Boolean).join(", ");
  // Names may turn round the direction of what is written beside them; <bdi> keeps that to themselves.
  return [
    element("bdi", {}, clientId || "(no client id)"), " ",
    rest ? element("span", { class: "faint" }, element("bdi", {}, rest)) : "",
  ];
}

function mutedFor({ mutedFor: reasons, mutedSeconds }) {
  if (!reasons.length) return [];
  const words = reasons.flatMap((each) => [element("span", { title: reasonOf(each), class: "reason" }, each), ", "]);
  return [...words.slice(0, -1), ` ${formatSeconds(mutedSeconds)}`];
}

function shareOf(used) {
  const meter = element("meter", { min: 0, max: 1.5, low: 0.8, high: 1, optimum: 0, value: used ?? 0 });
  meter.setAttribute("aria-hidden", "true");
  // The line through it is where all of the limit is used.
  return [element("span", { class: "share", title: "The line is 100 % of the limit." }, meter), formatPercent(used)];
}

/** A limit as it was set, and what this server enforces of it if others share it. */
const limitOf = ({ limitName, limit, fraction = 1 }, share) => `${limitName}=${formatCount(limit / share)}`
  + (share * fraction < 1 ? `, of which this server enforces 1/${formatCount(1 / share / fraction)}: ${formatCount(limit * fraction)}` : "");

const clientRow = (client, share) => [
  cell(...nameOf(client)),
  cell(...breakable(client.limitName === null ? client.policy ?? "none" : limitOf(client, share))),
  minor(client.used === null ? "" : formatCount(client.used)),
  number(...(client.limitName === null ? [""] : shareOf(client.usedFraction))),
  number(client.delaySeconds ? formatSeconds(client.delaySeconds) : "no"),
  number(client.refused ? formatCount(client.refused) : "no"),
];

function list(now) {
  for (const section of document.querySelectorAll("[data-of]")) section.hidden = !(section.dataset.of in now);
  fill("processes", "There is no process.", (now.processes ?? []).map((each) => [
    cell(`${each.process}`), cell(each.state), minor(formatSeconds(each.sinceSeconds)), number(loadOf(now, each)),
    number(each.residentBytes === null ? "?" : formatBytes(each.residentBytes)),
    number(each.connections === null ? "?" : `${each.connections}`), minor(`${each.restarts}`),
  ]));
  fill("clients", "No client is over a quota.", (now.throttled?.clients ?? []).map((each) => clientRow(each, now.limitShare)));
  fill("latency", "No request has ended lately.", (now.latency ?? []).map((each) => [
    cell(each.kind), minor(formatCount(each.count)), number(atMost(each.medianSeconds)), number(atMost(each.percentile99Seconds)),
  ]));
  fill("responses", "No request has been answered.", (now.responses?.kinds ?? []).map((each) => [
    cell(...breakable(each.kind)),
    ...STATUSES.map((status) => (MINOR_STATUSES.includes(status) ? minor : number)(each[status] ? formatCount(each[status]) : "")),
  ]));
  fill("nodes", "No node is known.", (now.nodes ?? []).map((each) => [
    cell(each.nodeId === null ? "bootstrap" : `${each.nodeId}`), cell(...breakable(each.address ?? "not known")),
    minor(`${each.links}`), number(`${each.unanswered}`), number(each.unansweredSeconds ? formatSeconds(each.unansweredSeconds) : ""),
    minor(formatBytes(each.heldBytes)),
    minor(each.stalledSeconds ? formatSeconds(each.stalledSeconds) : ""),
    minor(`${each.throttled.ours}, ${each.throttled.theirs}, ${each.throttled.both}`),
    cell(...breakable(each.lastError ?? "")),
  ]));
  fill("groups", "There are no groups.", (now.groups?.groups ?? []).map((each) => [
    cell(each.groupId), cell(each.state), minor(`${each.generation}`), number(`${each.memberCount}`),
    number(each.lagRecords === null ? "?" : formatCount(each.lagRecords)),
  ]));
  fill("topics", "There are no topics.", (now.disk?.topics ?? []).map((each) => [
    cell(...breakable(each.topic)), minor(`${each.partitionCount}`), number(formatBytes(each.usedBytes)),
  ]));
  fill("connections", "Nobody is connected.", now.connections.largest.map((each) => [
    cell(...breakable(each.peer), ...(each.process ? [" ", element("span", { class: "faint" }, `process ${each.process}`)] : [])),
    cell(...nameOf({ ...each, ip: "" })), number(formatBytes(each.heldBytes)),
    minor(formatBytes(each.requestBytes)), minor(formatBytes(each.bufferedBytes)), minor(formatBytes(each.unsentBytes)),
    cell(...mutedFor(each)),
  ]));
  for (const [name, count] of Object.entries(now.muted)) if (count && reasonOf(name)) seenReasons.add(name);
  keep(byId("reasons"), [...seenReasons].flatMap((name) => [element("dt", {}, name), element("dd", {}, reasonOf(name))]));
  const { groups, disk, connections } = now;
  if (groups) {
    byId("groups-count").textContent = `${groups.groups.length} of ${groups.count}, those that lag most`
      + (groups.uncountedGroups ? `; the lag of ${groups.uncountedGroups} is not known` : "");
  }
  if (disk) {
    byId("topics-count").textContent = `${disk.topics.length} of ${disk.topicCount}, the largest; ${formatBytes(disk.usedBytes)} in all`
      + (disk.freeBytes === null ? "" : `, ${formatBytes(disk.freeBytes)} of ${formatBytes(disk.totalBytes)} free`);
  }
  byId("connections-count").textContent = `${connections.largest.length} of ${connections.open}`;
}

function summarise(now) {
  const { process, connections, pool } = now;
  const load = rateOf(now, (each) => each.process.cpuSeconds);
  const facts = [
    ["up", formatSeconds(now.uptimeSeconds)],
    ...(now.listeners ? [["on", now.listeners.join(", ") || "no port"]] : []),
    ["connections", `${connections.open} of ${connections.allowed}`], ["CPU", formatPercent(load)],
    ["files", process.maxDescriptors < 0 ? `${process.openDescriptors}` : `${process.openDescriptors} of ${process.maxDescriptors}`],
    ["version", now.version],
    ...(now.sharing ? [["limits", now.sharing.fraction < 1
      ? `1/${formatCount(1 / now.sharing.fraction)} of each enforced here` : `shared by ${formatCount(now.sharing.servers)}`]] : []),
    ...(now.limitShare < 1 ? [["enforces", `1/${formatCount(1 / now.limitShare)} of each limit`]] : []),
  ];
  if (pool.waiting) facts.push(["wait for memory", `${pool.waiting}`]);
  keep(byId("facts"), facts.map(([name, value]) => element("li", {}, `${name} `, element("b", {}, value))));
}

function tell(state, kind, sentences) {
  const badge = byId("state");
  badge.textContent = state;
  badge.className = `badge ${kind}`;
  const message = byId("message");
  const text = sentences.join(" ");
  // A screen reader reads out what changes, and what stays should not be read each second.
  if (message.textContent !== text) message.textContent = text;
  message.hidden = !text;
  document.body.classList.toggle("old", kind === "");
}

function show(now) {
  lostSince = null;
  tell(now.health.status, now.health.status === "ok" ? "ok" : "bad", now.health.reasons.map((each) => `${each}.`));
  if (before !== null && before.atSeconds === now.atSeconds) return;
  plot(now);
  draw();
  list(now);
  summarise(now);
  before = now;
}

function lost(reason) {
  lostSince ??= new Date();
  const since = lostSince.toLocaleTimeString();
  tell("no answer", "", [`The server has not answered since ${since} (${reason}); what is below is from before. Trying again each second.`]);
}

async function poll() {
  const startedMs = performance.now();
  try {
    const response = await fetch("status.json", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
    if (!response.ok) throw new Error(`it says ${response.status}`);
    show(await response.json());
  } catch (error) {
    lost(error.name === "TimeoutError" ? `for ${PATIENCE_MS / 1000} s` : error.message);
  }
  setTimeout(poll, Math.max(POLL_MS - (performance.now() - startedMs), 0));
}

/** What was before the page was opened, as far as the server has kept it. */
async function remember() {
  try {
    const response = await fetch("history", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
    for (const sample of response.ok ? (await response.json()).samples : []) {
      plot(sample);
      before = sample;
    }
    if (before !== null) draw();
  } catch {
    // Without it the page begins with the present.
  }
}

/** The client or clients that a limit was set for, in words. */
function entityOf({ user, clientId, ip }) {
  const named = (what, name) => (name === null ? [] : [name === "<default>" ? `each ${what}` : `${what} ${name}`]);
  const words = [...named("user", user), ...named("client id", clientId), ...named("address", ip)];
  return words.join(", ") || "all clients together";
}

/** What is used of a limit, and where. */
const usedOf = ({ used, usedHere, usedElsewhere }) => (used === null ? "?" : formatCount(used))
  + (usedElsewhere === null ? "" : ` (${formatCount(usedHere)} here, ${formatCount(usedElsewhere)} elsewhere)`);

/** Whether other servers enforce the same limits, and what is known of them. */
function shared({ servers, fraction, heardSeconds, trouble }) {
  if (trouble !== null) return ` ${trouble[0].toUpperCase()}${trouble.slice(1)}.`;
  if (fraction < 1) return ` Limits are not shared yet; each of ${servers} servers enforces 1/${formatCount(1 / fraction)} of them.`;
  if (heardSeconds === null) return " Limits are shared, and no other server has been heard.";
  return ` Limits are shared by ${servers} servers; another was heard ${formatSeconds(heardSeconds)} ago.`;
}

/** What is said of one client, or of all that match. */
function explained({ user, clientId, ip, connections, delaySeconds, clientCount, clients, limits }) {
  if (clientCount > 1) {
    const throttled = delaySeconds > 0 ? `the slowest is throttled for another ${formatSeconds(delaySeconds)}` : "none of them is throttled";
    const shown = clients.length < clientCount ? `; here are ${clients.length}` : "";
    return `${clientCount} clients match, and ${throttled}${shown}. Name one to see its limits.`;
  }
  const whose = [`client id ${clientId || "(none)"}`, `user ${user || "(nobody)"}`, ...(ip ? [`address ${ip}`] : [])].join(", ");
  const open = connections === 1 ? "one connection" : `${connections} connections`;
  if (delaySeconds > 0) {
    const [{ policy, limitName }] = clients;
    const by = (policy === null ? "" : ` by ${policy}`) + (limitName === null ? "" : ` (${limitName})`);
    return `${whose}: throttled${by} for another ${formatSeconds(delaySeconds)}; ${open}.`;
  }
  if (!clientCount && !limits.some((each) => each.used)) {
    return `${whose}: not known. It has no connection, and has used none of its limits lately.`;
  }
  if (clients[0]?.refused) {
    return `${whose}: ${formatCount(clients[0].refused)} of its requests were refused lately by the policy ${clients[0].policy}; ${open}.`;
  }
  const worst = limits.filter((each) => !each.isShadow && each.delaySeconds > 0).sort((a, b) => b.delaySeconds - a.delaySeconds)[0];
  if (worst) {
    return `${whose}: its next request is throttled by ${worst.policy} (${worst.limitName}) for ${formatSeconds(worst.delaySeconds)}; ${open}.`;
  }
  if (!limits.length) return `${whose}: no limit holds for it, so no quota makes it slow; ${open}.`;
  return `${whose}: not throttled; ${open}. If it is slow all the same, see which connections are not read, and why.`;
}

async function explain(event) {
  event.preventDefault();
  const given = [...new FormData(event.target)].map(([name, value]) => [name, value.trim()]).filter(([, value]) => value);
  const answer = byId("answer");
  const show = (limits, clients, share) => {
    byId("limits-table").hidden = !limits.length;
    byId("matching-table").hidden = !clients.length;
    fill("limits", "", limits.map((each) => [
      cell(`${each.policy}${each.isShadow ? " (shadow)" : ""}`),
      cell(...breakable(limitOf(each, share))),
      cell(element("bdi", {}, entityOf(each.entity))), minor(usedOf(each)),
      number(...shareOf(each.usedFraction)), number(each.delaySeconds ? formatSeconds(each.delaySeconds) : "no"),
    ]));
    fill("matching", "", clients.map((each) => clientRow(each, share)));
  };
  try {
    const response = await fetch(`explain?${new URLSearchParams(given)}`, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
    const said = await response.json();
    answer.textContent = response.ok ? explained(said) + (said.sharing ? shared(said.sharing) : "") : said.error;
    if (response.ok) show(said.clientCount > 1 ? [] : said.limits, said.clientCount > 1 ? said.clients : [], said.limitShare);
    else show([], []);
  } catch (error) {
    answer.textContent = `The server does not answer (${error.message}).`;
    show([], []);
  }
}

byId("span").addEventListener("change", () => {
  hasChosen = true;
  draw();
});
document.querySelector(".question").addEventListener("submit", explain);
await remember();
poll();
