// What one container computed: on its page, by GPU, and over its life.

import { duration, now, t } from "../parts/format.js";
import { put } from "../parts/keyed.js";
import { chart, colour, partAxis, timeAxis } from "./charts.js";
import { mean, percent } from "./computing.js";

const EVERY = 5000; // a life over a few hundred pixels needs no point each second

export function showComputing(container) {
  const reason = document.querySelector('[data-field="no_turns"]');
  put(reason, container.no_turns);
  reason.hidden = !container.no_turns;
  for (const row of document.querySelectorAll("#computing tr[data-card]")) {
    const claim = container.gpus[row.dataset.card] ?? {};
    for (const cell of row.querySelectorAll("[data-part]")) {
      const value = claim[cell.dataset.part] ?? null;
      put(cell, value === null ? "–" : t("of_time", { part: percent(value, container) }));
    }
  }
}

/** Seconds of its life, which no feed tells each second. `container()`: its live record while that is fresh. */
export function countComputed(id, container) {
  const rows = [...document.querySelectorAll("#computing tr[data-card]")];
  const ask = async () => {
    const record = container();
    if (!record || record.finished_at || document.hidden) return;
    const answer = await fetch(`${document.body.dataset.base}api/v1/containers/${id}/`);
    if (!answer.ok) return;
    const claims = new Map((await answer.json()).gpus.map((claim) => [claim.uuid, claim]));
    for (const row of rows) {
      for (const cell of row.querySelectorAll("[data-seconds]")) {
        const value = claims.get(row.dataset.card)?.[cell.dataset.seconds] ?? null;
        put(cell, value === null ? "–" : duration(value));
      }
    }
  };
  setInterval(() => ask().catch(() => {}), EVERY);
}

/** `past`: {times, had, due} in per cent; `container()`: its live record while that is fresh. */
export function drawComputed(past, hue, container) {
  const place = document.getElementById("computed");
  if (past.had.every((value) => value === null)) return; // nobody could tell
  place.hidden = document.getElementById("computed-legend").hidden = false;
  const columns = [[...past.times], past.had, past.due];
  const plot = chart(
    place,
    120,
    () => ({
      scales: { y: { range: [0, 100] } },
      axes: [timeAxis(), { ...partAxis("y"), side: 3 }],
      series: [
        {},
        { stroke: colour(hue), fill: colour(hue, 0.35), width: 1.5, points: { show: false } },
        { stroke: colour("--faint"), width: 1, dash: [4, 3], points: { show: false } },
      ],
    }),
    columns,
  );
  setInterval(() => {
    const record = container();
    if (!record || document.hidden) return;
    const [had, due] = ["had_lately", "due_lately"].map((field) => mean(record, field));
    if (had === null) return;
    columns[0].push(Math.round(now()));
    columns[1].push(percent(had, record));
    columns[2].push(due === null ? null : percent(due, record));
    plot.set(columns);
  }, EVERY);
}
