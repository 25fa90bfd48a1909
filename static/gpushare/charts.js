// Charts over time, all alike: uPlot, our colours, redrawn when the theme or the width changes.
import { size } from "./format.js";

const style = () => getComputedStyle(document.documentElement);
const probe = document.createElement("canvas").getContext("2d");

/** What a custom property of the style sheet is now, as a colour that a canvas understands. */
export function colour(name, alpha = 1) {
  const element = document.createElement("span");
  element.style.color = `var(${name})`;
  document.body.append(element);
  probe.fillStyle = getComputedStyle(element).color;
  element.remove();
  const [r, g, b] = probe.fillStyle.match(/\w\w/g).map((hex) => parseInt(hex, 16));
  return alpha === 1 ? probe.fillStyle : `rgba(${r}, ${g}, ${b}, ${alpha})`;
}

const charts = new Set();
const redraw = () => { for (const chart of charts) chart.draw(); };
addEventListener("theme", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
const sizes = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const chart = [...charts].find(({ place }) => place === target);
    if (chart?.plot && target.clientWidth) chart.plot.setSize({ width: target.clientWidth, height: chart.height });
  }
});

/**
 * A chart in `place`. `options()` gives uPlot's options with colours as they are now; `data` its columns.
 * Returns {set(data), plot}.
 */
export function chart(place, height, options, data) {
  const self = {
    place, height, data, plot: null,
    draw() {
      self.plot?.destroy();
      self.plot = new uPlot({ width: place.clientWidth || 300, height, ...options() }, self.data, place);
    },
    set(columns) { self.data = columns; self.plot.setData(columns); },
  };
  charts.add(self);
  self.draw();
  sizes.observe(place);
  return self;
}

const axis = () => ({ stroke: colour("--faint"), font: "11px system-ui", ticks: { show: false }, grid: { stroke: colour("--line"), width: 1 } });
export const timeAxis = () => ({ ...axis(), grid: { show: false }, space: 70, size: 22, values: (_, ticks, __, ___, step) => ticks.map((tick) => {
  const at = new Date(tick * 1000);
  return step >= 86400 ? at.toLocaleDateString([], { day: "numeric", month: "short" })
    : at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", ...(step < 60 && { second: "2-digit" }), hour12: false });
}) });
export const sizeAxis = () => ({ ...axis(), size: 62, space: 26, splits: (_, __, low, high) => sizeTicks(high), values: (_, ticks) => ticks.map(size) });

/** At most four ticks at sizes that people like: 1, 2, 4, 5, 8, 10, 16, 20, … MiB or GiB. */
function sizeTicks(high) {
  const unit = high >= 2 * 2 ** 30 ? 2 ** 30 : high >= 2 ** 30 ? 2 ** 28 : 2 ** 20;
  const step = [1, 2, 5, 10, 20, 40, 50, 100, 200, 500, 1000].find((n) => high / (n * unit) <= 4) ?? 2000;
  const ticks = [];
  for (let tick = 0; tick <= high; tick += step * unit) ticks.push(tick);
  return ticks;
}

/** Puts columns on top of each other: what uPlot draws from the top one down, so that each covers those beneath. */
export function stacked(columns) {
  const sums = columns[0] ? columns[0].map(() => 0) : [];
  return columns.map((column) => column.map((value, index) => (sums[index] += value ?? 0)));
}
