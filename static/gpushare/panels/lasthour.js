// The last hour of one GPU beneath its bar: VRAM held, and how busy the GPU was.

import { now, t } from "../parts/format.js";
import { live } from "../parts/live.js";
import { chart, colour, partAxis, sizeAxis, timeAxis } from "./charts.js";

const HOUR = 3600;

export async function lastHour(place, uuid, total) {
  const address = new URL(
    `gpus/${encodeURIComponent(uuid)}/last-hour/`,
    new URL(document.body.dataset.base, location.href),
  );
  const answer = await fetch(address);
  if (!answer.ok) return;
  const past = await answer.json();
  const columns = [past.times, past.used, past.utilisation];
  const plot = chart(
    place,
    100,
    () => ({
      scales: { x: { range: () => [now() - HOUR, now()] }, y: { range: [0, total] }, busy: { range: [0, 100] } },
      axes: [timeAxis(), sizeAxis(null, 3), partAxis("busy")],
      series: [
        {},
        { stroke: colour("--accent"), fill: colour("--accent", 0.25), width: 1.5, points: { show: false } },
        { scale: "busy", stroke: colour("--faint"), width: 1, points: { show: false }, spanGaps: true },
      ],
    }),
    columns,
  );
  place.setAttribute("aria-label", t("last_hour"));

  setInterval(() => {
    const gpu = live.state.gpus[uuid];
    if (!live.fresh || !gpu || document.hidden) return;
    const used = Object.values(live.state.containers).reduce(
      (sum, container) => sum + (container.gpus[uuid]?.used ?? 0),
      0,
    );
    columns[0].push(Math.floor(now()));
    columns[1].push(used);
    columns[2].push(gpu.utilisation);
    while (columns[0][0] < now() - HOUR - 60) for (const column of columns) column.shift();
    plot.set(columns);
  }, 5000); // an hour over a few hundred pixels: one of them is ten seconds
}
