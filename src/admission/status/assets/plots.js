"use strict";

// Plots of the last hour: lines, or areas upon each other.

const KEPT_MS = 60 * 60 * 1000;
/** The server keeps what was before the page was opened every ten seconds. */
const GAP_MS = 25_000;
const WIDTH = 600;
const HEIGHT = 100;
const COLOURS = 8;
const NAMESPACE = "http://www.w3.org/2000/svg";

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  made.append(...children);
  return made;
}

/** The next round number: 1, 2 or 5 times a power of ten, or a power of two. */
function roundUp(value, isBinary) {
  if (value <= 1) return 1;
  if (isBinary) return 2 ** Math.ceil(Math.log2(value));
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((each) => each * power >= value) * power;
}

export class Plot {
  /**
   * @param format writes a value.
   * @param explain says what a series is, in a sentence.
   * @param isStacked whether the values add up to something.
   * @param isBinary whether they are bytes.
   */
  constructor(parent, title, { format, explain = () => "", isStacked = false, isBinary = false }) {
    this.format = format;
    this.explain = explain;
    this.shownMs = KEPT_MS;
    this.isStacked = isStacked;
    this.isBinary = isBinary;
    this.points = [];
    this.series = new Map();
    this.most = element("span");
    this.svg = document.createElementNS(NAMESPACE, "svg");
    for (const [name, value] of [["viewBox", `0 0 ${WIDTH} ${HEIGHT}`], ["preserveAspectRatio", "none"], ["aria-hidden", "true"]]) {
      this.svg.setAttribute(name, value);
    }
    this.limitPath = this.path("limit");
    this.legend = element("ul", { class: "legend" });
    this.begin = element("span");
    parent.append(
      element("figure", {},
        element("figcaption", {}, title, this.most), this.svg,
        element("div", { class: "axis", "aria-hidden": "true" }, this.begin, element("span", {}, "now")),
        this.legend));
  }

  path(kind) {
    const path = document.createElementNS(NAMESPACE, "path");
    path.setAttribute("class", kind);
    this.svg.append(path);
    return path;
  }

  /**
   * Take in what was seen at a time.
   * @param values by the names of the series.
   * @param limit what they cannot exceed, if anything.
   */
  add(timeMs, values, limit = null) {
    for (const name of Object.keys(values)) this.addSeries(name);
    this.points.push({ timeMs, values, limit });
    while (this.points[0].timeMs < timeMs - KEPT_MS) this.points.shift();
  }

  get knownMs() {
    return this.points.at(-1).timeMs - this.points[0].timeMs;
  }

  /**
   * Draw what was taken in.
   * @param shownMs how much of the past.
   */
  show(shownMs) {
    this.shownMs = shownMs;
    const last = this.points.at(-1);
    for (const [name, { value }] of this.series) value.textContent = this.format(last.values[name] ?? 0);
    this.begin.textContent = shownMs < KEPT_MS ? `${Math.round(shownMs / 60_000)} min ago` : "1 h ago";
    this.draw(last.timeMs);
  }

  addSeries(name) {
    if (this.series.has(name)) return;
    const colour = `c${this.series.size % COLOURS}`;
    const value = element("b");
    this.legend.append(element("li", { title: this.explain(name) }, element("span", { class: `swatch ${colour}` }), `${name} `, value));
    this.series.set(name, { value, path: this.path(this.isStacked ? `area ${colour}` : colour) });
  }

  draw(nowMs) {
    const names = [...this.series.keys()];
    const heightOf = ({ values, limit }) => {
      const all = names.map((name) => values[name] ?? 0);
      return Math.max(limit ?? 0, this.isStacked ? all.reduce((sum, each) => sum + each, 0) : Math.max(0, ...all));
    };
    const runs = this.runs(nowMs - this.shownMs);
    const most = roundUp(Math.max(...runs.flat().map(heightOf)), this.isBinary);
    this.most.textContent = `up to ${this.format(most)}`;
    const x = (timeMs) => (WIDTH * (1 - (nowMs - timeMs) / this.shownMs)).toFixed(1);
    const y = (value) => (HEIGHT * (1 - Math.max(value, 0) / most)).toFixed(1);
    const line = (run, heights) => run.map((point, index) => `${x(point.timeMs)},${y(heights[index])}`);
    const lower = runs.map((run) => run.map(() => 0));
    for (const [name, { path }] of this.series) {
      path.setAttribute("d", runs.map((run, number) => {
        const heights = run.map((point, index) => (point.values[name] ?? 0) + (this.isStacked ? lower[number][index] : 0));
        const back = this.isStacked ? `L${line(run, lower[number]).reverse().join("L")}Z` : "";
        lower[number] = heights;
        return `M${line(run, heights).join("L")}${back}`;
      }).join(""));
    }
    const limited = runs.filter((run) => run.every((point) => point.limit !== null));
    this.limitPath.setAttribute("d", limited.map((run) => `M${line(run, run.map((point) => point.limit)).join("L")}`).join(""));
  }

  /** The points in stretches without a gap, so that no line is drawn over what nobody saw. */
  runs(sinceMs) {
    const runs = [];
    let beforeMs = -Infinity;
    for (const point of this.points) {
      if (point.timeMs < sinceMs) continue;
      if (point.timeMs - beforeMs > GAP_MS) runs.push([]);
      runs.at(-1).push(point);
      beforeMs = point.timeMs;
    }
    return runs;
  }
}
