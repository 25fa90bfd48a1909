// What one container uses of the host: processors and RAM, now and over its life.

import { now, size, t } from "../parts/format.js";
import { put } from "../parts/keyed.js";
import { chart, colour, sizeAxis, timeAxis } from "./charts.js";

const EVERY = 5000;

export function showHost(place, { cpus_used: cpus, memory_used: memory }) {
  const text =
    memory === null ? t("not_known") : t("host_used", { cpus: (cpus ?? 0).toFixed(1), memory: size(memory) });
  put(place, text);
}

/** `past`: {times, cpus, memory}; `container()`: its live record while that is fresh. */
export function drawHost(past, shade, container) {
  const place = document.getElementById("used-of-host");
  if (past.memory.every((value) => value === null)) return; // nobody could tell
  place.hidden = document.getElementById("host-legend").hidden = false;
  const columns = [[...past.times], past.memory, past.cpus];
  const above = (_, __, high) => [0, Math.max(1, (high ?? 0) * 1.1)];
  const plot = chart(
    place,
    120,
    () => ({
      scales: { y: { range: (_, __, high) => [0, Math.max(2 ** 20, (high ?? 0) * 1.1)] }, cpus: { range: above } },
      axes: [
        timeAxis(),
        sizeAxis(null, 3),
        { ...timeAxis(), scale: "cpus", side: 1, size: 44, values: undefined, incrs: undefined },
      ],
      series: [
        {},
        { stroke: colour(shade), fill: colour(shade, 0.35), width: 1.5, points: { show: false } },
        { scale: "cpus", stroke: colour("--faint"), width: 1, points: { show: false }, spanGaps: true },
      ],
    }),
    columns,
  );
  setInterval(() => {
    const record = container();
    if (!record || document.hidden || record.memory_used === null) return;
    columns[0].push(Math.round(now()));
    columns[1].push(record.memory_used);
    columns[2].push(record.cpus_used);
    plot.set(columns);
  }, EVERY);
}
