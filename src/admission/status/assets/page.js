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

const plotted = (title, options) => new Plot(byId("plots"), title, options);
const plots = {
  pool: plotted("Memory pool", { format: formatBytes, isBinary: true }),
  ledger: plotted("Where memory is", { format: formatBytes, isBinary: true, isStacked: true }),
  requests: plotted("Requests a second", { format: formatCount }),
  muted: plotted("Connections not read", { format: formatCount }),
  throttled: plotted("Clients over a quota", { format: formatCount }),
  purgatory: plotted("Requests that wait", { format: formatCount }),
  lag: plotted("Lag of groups, in records", { format: formatCount }),
  process: plotted("Process memory", { format: formatBytes, isBinary: true }),
};

let before = null;
let lostSince = null;

/** How fast a counter grows; nothing before there are two looks at the same broker. */
function rateOf(now, read) {
  const isSame = before !== null && now.uptimeSeconds > before.uptimeSeconds;
  return isSame ? Math.max((read(now) - read(before)) / (now.uptimeSeconds - before.uptimeSeconds), 0) : 0;
}

function plot(now) {
  const timeMs = now.atSeconds * 1000;
  plots.pool.add(timeMs, { used: now.pool.usedBytes }, now.pool.sizeBytes);
  plots.ledger.add(timeMs, now.ledger);
  plots.requests.add(timeMs, { read: rateOf(now, (each) => each.requests.read) });
  plots.muted.add(timeMs, now.muted);
  plots.throttled.add(timeMs, { clients: now.throttled.count });
  plots.purgatory.add(timeMs, { watched: now.purgatory.watched, "with a timeout": now.purgatory.delayed });
  plots.lag.add(timeMs, { lag: now.groups.lagRecords });
  plots.process.add(timeMs, { resident: now.process.residentBytes, "without files": now.process.privateBytes });
}

function fill(id, emptySentence, rows) {
  const body = byId(id);
  if (rows.length) {
    body.replaceChildren(...rows.map((cells) => element("tr", {}, ...cells)));
  } else {
    const columns = body.parentElement.tHead.rows[0].cells.length;
    body.replaceChildren(element("tr", {}, element("td", { colspan: columns, class: "faint" }, emptySentence)));
  }
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

function shareOf(used) {
  const meter = element("meter", { min: 0, max: 1.5, low: 0.8, high: 1, optimum: 0, value: used ?? 0 });
  meter.setAttribute("aria-hidden", "true");
  return [meter, formatPercent(used)];
}

function list(now) {
  fill("clients", "No client is over a quota.", now.throttled.clients.map((each) => [
    cell(...nameOf(each)),
    cell(...breakable(each.limitName === null ? "none any more" : `${each.limitName}=${formatCount(each.limit)}`)),
    minor(each.used === null ? "" : formatCount(each.used)),
    number(...shareOf(each.usedFraction)),
    number(each.delaySeconds ? formatSeconds(each.delaySeconds) : "no"),
  ]));
  fill("groups", "There are no groups.", now.groups.groups.map((each) => [
    cell(each.groupId), cell(each.state), minor(`${each.generation}`), number(`${each.memberCount}`),
    number(each.lagRecords === null ? "?" : formatCount(each.lagRecords)),
  ]));
  fill("connections", "Nobody is connected.", now.connections.largest.map((each) => [
    cell(...breakable(each.peer)), cell(...nameOf({ ...each, ip: "" })), number(formatBytes(each.heldBytes)),
    minor(formatBytes(each.requestBytes)), minor(formatBytes(each.bufferedBytes)), minor(formatBytes(each.unsentBytes)),
    cell(each.mutedFor.length ? `${each.mutedFor.join(", ")} ${formatSeconds(each.mutedSeconds)}` : ""),
  ]));
  const { groups, connections } = now;
  byId("groups-count").textContent = `${groups.groups.length} of ${groups.count}, those that lag most`
    + (groups.uncountedGroups ? `; the lag of ${groups.uncountedGroups} is not known` : "");
  byId("connections-count").textContent = `${connections.largest.length} of ${connections.open}`;
}

function summarise(now) {
  const { process, connections, pool } = now;
  const load = rateOf(now, (each) => each.process.cpuSeconds);
  const facts = [
    ["up", formatSeconds(now.uptimeSeconds)], ["on", now.listeners.join(", ") || "no port"],
    ["connections", `${connections.open} of ${connections.allowed}`], ["CPU", formatPercent(load)],
    ["files", process.maxDescriptors < 0 ? `${process.openDescriptors}` : `${process.openDescriptors} of ${process.maxDescriptors}`],
    ["version", now.version],
  ];
  if (pool.waiting) facts.push(["wait for memory", `${pool.waiting}`]);
  byId("facts").replaceChildren(...facts.map(([name, value]) => element("li", {}, `${name} `, element("b", {}, value))));
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
  list(now);
  summarise(now);
  before = now;
}

function lost(reason) {
  lostSince ??= new Date();
  const since = lostSince.toLocaleTimeString();
  tell("no answer", "", [`The broker has not answered since ${since} (${reason}); what is below is from before. Trying again each second.`]);
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

poll();
