// Where there are several nodes: their figures, the worst first, those that were searched for, and the one that was
// chosen. Figures are counted once for each look at the feed, however many cards and containers there are.
import { live } from "../parts/live.js";

const WAITS_PER_PLACE = 1e6;

/** The nodes by name, each {name, node, cards: [[uuid, gpu]], used, capacity, running, waiting}. */
export function figures() {
  const found = new Map(
    Object.entries(live.state.nodes).map(([name, node]) => [
      name,
      { name, node, cards: [], used: 0, capacity: 0, running: 0, waiting: 0 },
    ]),
  );
  const used = usedByCard();
  for (const [uuid, gpu] of Object.entries(live.state.gpus)) {
    const of = found.get(gpu.node);
    if (!of) continue;
    of.cards.push([uuid, gpu]);
    of.used += used.get(uuid) ?? 0;
    of.capacity += gpu.capacity;
  }
  for (const container of Object.values(live.state.containers)) {
    const of = found.get(container.node);
    if (!of || container.finished_at !== null) continue;
    if (container.suspended_since !== null) of.waiting += 1;
    else if (container.state === "running") of.running += 1;
  }
  for (const { cards } of found.values()) cards.sort(([, a], [, b]) => a.index - b.index);
  return found;
}

/** Bytes that containers hold, by the UUID of the card. */
export function usedByCard() {
  const used = new Map();
  for (const container of Object.values(live.state.containers)) {
    if (container.finished_at !== null) continue;
    for (const [uuid, claim] of Object.entries(container.gpus)) used.set(uuid, (used.get(uuid) ?? 0) + claim.used);
  }
  return used;
}

export const several = () => Object.keys(live.state.nodes).length > 1;

/** How much somebody has to look at it: away, then an engine that is away, then who waits, then how full it is. */
function trouble({ node, waiting, used, capacity }) {
  const broken = node.alive ? (node.error ? 1 : 0) : 2;
  return broken * WAITS_PER_PLACE ** 2 + waiting * WAITS_PER_PLACE + (capacity ? used / capacity : 0);
}

const byName = new Intl.Collator([], { numeric: true });

/** The worst first; of equals by name, gpu2 before gpu10. `group`: the name of a label whose values are kept together. */
export function worstFirst(nodes, group = "") {
  const place = new Map(nodes.map((each) => [each, trouble(each)]));
  const order = (a, b) => place.get(b) - place.get(a) || byName.compare(a.name, b.name);
  if (!group) return [...nodes].sort(order);
  const value = ({ node }) => node.labels[group] ?? "";
  return [...nodes].sort((a, b) => byName.compare(value(a), value(b)) || order(a, b));
}

/** Whether each word of `text` stands in its name, its labels, its state, or the name of one of its cards. */
export function matches({ name, node, cards }, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return true;
  const labels = Object.entries(node.labels).map(([key, value]) => `${key}=${value}`);
  const states = [!node.alive && "away", node.drained_at && "drained", node.error && "engine"].filter(Boolean);
  const said = [name, ...labels, ...states, ...new Set(cards.map(([, gpu]) => gpu.name))].join(" ").toLowerCase();
  return words.every((word) => said.includes(word));
}

/** The names of all labels, to group by. */
export function labels() {
  return [...new Set(Object.values(live.state.nodes).flatMap((node) => Object.keys(node.labels)))].sort();
}
