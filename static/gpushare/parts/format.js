// Numbers, times and words as people read them. All words come from the catalogue in the page (web/pages/text.py).
const catalogue = JSON.parse(document.getElementById("text")?.textContent ?? "{}");

/** The text for `key`, with {name} replaced by values.name, and {s} by the plural's. Plain: put it in with textContent. */
export function t(key, values = {}) {
  const all = { s: values.count === 1 ? "" : "s", ...values };
  return (catalogue[key] ?? key).replace(/\{(\w+)\}/g, (whole, name) => all[name] ?? whole);
}

const UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB"];

/** 1610612736 → "1.5 GiB", as web/sizes.py writes it: at most two decimals. */
export function size(bytes) {
  let value = bytes ?? 0,
    unit = 0;
  while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${Number(value.toFixed(2))} ${UNITS[unit]}`;
}

/** "2GiB" → bytes, as web/sizes.py reads it; null if it is no size. */
export function bytesOf(text) {
  const match = /^\s*(\d{1,20}(?:\.\d{1,9})?)\s*(?:([kmgt])(?:i?b)?|b)?\s*$/i.exec(text);
  const bytes = match && Number(match[1]) * 1024 ** " kmgt".indexOf((match[2] ?? " ").toLowerCase());
  return Number.isInteger(bytes) ? bytes : null;
}

/**
 * Sizes that are added up, in one unit: {parts, total}, texts whose figures have that sum at sight. Each is rounded to
 * hundredths, and what rounding leaves over goes to the largest. Parts that do not make up the total stay as they are.
 */
export function sum(parts, total) {
  let unit = 0;
  while (total >= 1024 ** (unit + 1) && unit < UNITS.length - 1) unit += 1;
  const one = 1024 ** unit;
  const hundredths = parts.map((bytes) => Math.round((100 * bytes) / one));
  const whole = Math.round((100 * total) / one);
  const left = whole - hundredths.reduce((made, part) => made + part, 0);
  if (Math.abs(left) <= parts.length) hundredths[hundredths.indexOf(Math.max(...hundredths))] += left;
  return { parts: hundredths.map((part) => `${part / 100} ${UNITS[unit]}`), total: `${whole / 100} ${UNITS[unit]}` };
}

/** 75 → "1 min 15 s". Two units at the most. */
export function duration(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
}

/** Seconds since the epoch → "2026-11-21 16:34:28", where the reader is. */
export function stamp(seconds) {
  const at = new Date(seconds * 1000);
  return new Date(at - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 19).replace("T", " ");
}

/** "at about 14:30 UTC" → the same time of today where the reader is: the scheduler writes its reasons in UTC. */
export function local(text) {
  return (text ?? "").replace(/\b(\d\d):(\d\d) UTC/g, (_, hours, minutes) =>
    stamp(new Date().setUTCHours(hours, minutes, 0) / 1000).slice(11, 16),
  );
}

const clock = { skew: 0 }; // server's clock − ours, seconds: what ages are counted against
export const now = () => Date.now() / 1000 + clock.skew;
export function setClock(serverNow) {
  clock.skew = serverNow - Date.now() / 1000;
}

/** A new element. Texts are set as text, never as markup: names and reasons come from strangers. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

/** What the style sheet knows a container by: its colour, and from 10 on a pattern over it. */
export const mark = (colour) => String((colour ?? 0) % 40);
/** The name of that colour. */
export const hue = (colour) => `--c${(colour ?? 0) % 10}`;
