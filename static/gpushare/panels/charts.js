// Charts over time, all alike: uPlot, our colours, redrawn when the theme or the width changes.
import { now, size } from "../parts/format.js";

const probe = document.createElement("canvas").getContext("2d");

/** What a custom property of the style sheet is now, as a colour that a canvas understands. Costs a look at the style. */
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
const redraw = () => {
  for (const chart of charts) chart.draw();
};
addEventListener("theme", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
const sizes = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const chart = [...charts].find(({ place }) => place === target);
    if (chart?.plot && target.clientWidth && target.clientWidth !== chart.plot.width)
      chart.plot.setSize({ width: target.clientWidth, height: chart.height });
  }
});

/** From the first to the last time; a minute where that is one moment, of which uPlot has made 1,000 days by then. */
const span = ({ data: [times] }, first, last) => {
  const end = times.at(-1) ?? now();
  return times.at(0) < end ? [first, last] : [end - 60, end];
};

/**
 * A chart in `place`. `options()` gives uPlot's options with colours as they are now; `data` its columns. It has no
 * legend, and no cursor unless they say so.
 * Returns {set(data), plot}.
 */
export function chart(place, height, options, data) {
  const self = {
    place,
    height,
    data,
    plot: null,
    draw() {
      self.plot?.destroy();
      const chosen = options();
      const scales = { ...chosen.scales, x: { range: span, ...chosen.scales?.x } };
      const plain = { width: place.clientWidth || 300, height, legend: { show: false }, cursor: { show: false } };
      self.plot = new uPlot({ ...plain, ...chosen, scales }, self.data, place);
    },
    set(columns) {
      self.data = columns;
      self.plot.setData(columns);
    },
  };
  charts.add(self);
  self.draw();
  sizes.observe(place);
  return self;
}

export const axis = () => ({
  stroke: colour("--faint"),
  font: "11px system-ui",
  ticks: { show: false },
  grid: { stroke: colour("--line"), width: 1 },
});
const [MINUTE, HOUR, DAY] = [60, 3600, 86400];
/** Between two labels, in seconds: none is less than what a label tells. */
const STEPS = [
  ...[1, 5, 10, 15, 30],
  ...[1, 5, 10, 15, 30].map((n) => n * MINUTE),
  ...[1, 2, 3, 4, 6, 8, 12].map((n) => n * HOUR),
  ...[1, 2, 3, 4, 5, 7, 10, 15, 30, 60, 90, 180, 365].map((n) => n * DAY),
];
export const timeAxis = () => ({
  ...axis(),
  grid: { show: false },
  incrs: STEPS,
  space: 70,
  size: 22,
  values: (_, ticks, __, ___, step) =>
    ticks.map((tick) => {
      const at = new Date(tick * 1000);
      const midnight = step >= 3600 && at.getHours() + at.getMinutes() === 0;
      return step >= 86400 || midnight
        ? at.toLocaleDateString([], { day: "numeric", month: "short" })
        : at.toLocaleTimeString([], {
            hour: "2-digit",
            minute: "2-digit",
            ...(step < 60 && { second: "2-digit" }),
            hour12: false,
          });
    }),
});
export const partAxis = (scale) => ({
  ...axis(),
  scale,
  side: 1,
  size: 44,
  grid: { show: false },
  splits: () => [0, 50, 100],
  values: (_, ticks) => ticks.map((tick) => `${tick} %`),
});
/** `whole()`: what the highest label says; the top of the scale if it is left out. `most`: parts that there is room for. */
export const sizeAxis = (whole = null, most = 5) => ({
  ...axis(),
  size: 62,
  space: 26,
  splits: (_, __, ___, high) => sizeTicks(whole?.() ?? high, most),
  values: (_, ticks) => ticks.map(size),
});

/** The whole, and ticks beneath it in at most so many parts: steps that part it evenly if there are such, else round ones. */
function sizeTicks(whole, most) {
  const unit = whole >= 2 * 2 ** 30 ? 2 ** 30 : whole >= 2 ** 30 ? 2 ** 28 : 2 ** 20;
  const steps = [1, 2, 4, 5, 8, 10, 16, 20, 32, 40, 50, 100, 200, 500, 1000]
    .map((n) => n * unit)
    .filter((step) => whole / step <= most);
  const step = steps.find((each) => whole % each === 0) ?? steps[0] ?? whole;
  const ticks = [];
  for (let tick = 0; tick < whole - step * 0.6; tick += step) ticks.push(tick); // nearer, two labels would touch
  return [...ticks, whole];
}

const WEAVES = [null, [1, 0, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0]]; // upright, dots, lying: two cells by two, cut out or not

/** A colour, or from 1 on the same with a pattern over it, as style/base.css has them: a fill for a canvas. */
export function patterned(shade, pattern) {
  const weave = WEAVES[pattern];
  if (!weave) return shade;
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const context = tile.getContext("2d");
  context.fillStyle = shade;
  context.fillRect(0, 0, 6, 6);
  context.fillStyle = colour("--panel", 0.65);
  weave.forEach((cut, cell) => {
    if (cut) context.fillRect(3 * (cell % 2), 3 * Math.floor(cell / 2), 3, 3);
  });
  return context.createPattern(tile, "repeat");
}

/** Puts columns on top of each other: what uPlot draws from the top one down, so that each covers those beneath. */
export function stacked(columns) {
  const sums = columns[0] ? columns[0].map(() => 0) : [];
  return columns.map((column) => column.map((value, index) => (sums[index] += value ?? 0)));
}
