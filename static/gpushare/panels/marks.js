// Waits and kills on the replay: a strip beneath the chart, lines through it, and the same as a list that leads there.
import { duration, make, stamp, t } from "../parts/format.js";
import { pageOf, personOf } from "./waiting.js";

const ROWS = 4; // lines of the strip: waits at one time stand below each other, as far as there is room

/** `around`: {first, last} in seconds, the chart's `over` and the strip `waits`; `go(at)` moves the cursor there. */
export function showMarks(marks, { first, last, over, waits }, go) {
  const part = (at) => (100 * Math.min(Math.max(at - first, 0), last - first)) / Math.max(1, last - first);
  const free = Array(ROWS).fill(Number.NEGATIVE_INFINITY);
  for (const { kind, name, at, until } of marks) {
    if (kind === "killed") {
      const line = make("i", { class: "kill-line", title: t("was_killed", { name }) });
      line.style.left = `${part(at)}%`;
      over.append(line);
      continue;
    }
    const found = free.findIndex((end) => end <= at);
    const row = found < 0 ? ROWS - 1 : found;
    free[row] = until;
    const bar = make("i", { title: t("waited_for", { name, time: duration(until - at) }) });
    bar.style.left = `${part(at)}%`;
    bar.style.width = `max(2px, ${part(until) - part(at)}%)`;
    bar.style.top = `${7 * row}px`;
    waits.append(bar);
  }
  document.getElementById("marked").hidden = marks.length === 0;
  document.getElementById("marks").append(
    ...marks.map(({ kind, id, name, owner, at, until }) => {
      const there = make("button", { type: "button", class: "link" }, stamp(at));
      there.addEventListener("click", () => go(at));
      const words = kind === "killed" ? t("killed_then") : t("waited_then", { time: duration(until - at) });
      return make(
        "li",
        {},
        there,
        make("span", { class: kind }, words),
        make("a", { href: pageOf(id), title: name }, name),
        make("a", { class: "faint", href: personOf(owner) }, owner),
      );
    }),
  );
}
