// What containers computed in the last minute, in words and as a band: the same wherever it is shown.
import { mark, now, t } from "../parts/format.js";
import { keyed } from "../parts/keyed.js";

const MINUTE = 60; // seconds
/** Of the last minute, or of its life if that is shorter. */
export const percent = (seconds, container) =>
  Math.round((100 * seconds) / Math.min(MINUTE, Math.max(1, now() - container.started_at)));

/** One figure, the mean over those of its GPUs that tell; null where none does. */
export function mean(container, field) {
  const known = Object.values(container.gpus)
    .map((claim) => claim[field])
    .filter((value) => value !== null && value !== undefined);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}

/** {label, title, turns}: a container's state, and whether it has waited for its turn in the last minute. */
function standing(container) {
  const back = container.state === "running" ? mean(container, "held_back_lately") : null;
  if (!back) return { label: t(`state_${container.state}`), title: "", turns: false };
  const [had, due] = ["had_lately", "due_lately"].map((field) => percent(mean(container, field) ?? 0, container));
  const title = t("in_turns_title", { had, due, back: Math.round(back) });
  return { label: t("in_turns", { part: had }), title, turns: true };
}

/** Puts a container's state into its chip; `around` is what the style sheet looks at. */
export function showState(around, chip, container) {
  const { label, title, turns } = standing(container);
  around.dataset.state = container.state;
  around.toggleAttribute("data-waits", container.suspended_since !== null);
  around.toggleAttribute("data-turns", turns);
  if (chip.textContent !== label) chip.textContent = label;
  if (chip.title !== title) chip.title = title;
}

/** A thin band of who computed how much: `parts` are {id, name, colour, part}, 0 to 1. Hidden if nobody can tell. */
export function showBand(band, parts, words = "computed") {
  band.hidden = parts.length === 0 || parts.every(({ part }) => part === null);
  const shown = parts.filter(({ part }) => part > 0.001);
  const caption = ({ name, part }) => t("computed_by", { name, part: Math.round(100 * part) });
  keyed(
    band,
    shown,
    ({ id }) => id,
    () => document.createElement("span"),
    (element, entry) => {
      element.style.width = `${100 * Math.min(1, entry.part)}%`;
      element.dataset.mark = mark(entry.colour);
      element.title = caption(entry);
    },
  );
  const label = t(words, { who: shown.map(caption).join(", ") || t("computed_none") });
  if (band.getAttribute("aria-label") !== label) band.setAttribute("aria-label", label);
}

export const part = (seconds) => (seconds === null || seconds === undefined ? null : seconds / MINUTE);
