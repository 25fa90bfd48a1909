// The overview of several nodes: a map, the worst first, and which cards are shown in full. With one node it is not there.
import { duration, make, now, size, t } from "../parts/format.js";
import { keyed, put } from "../parts/keyed.js";
import { live } from "../parts/live.js";
import { CardMap } from "./map.js";
import { figures, labels, matches, several, usedByCard, worstFirst } from "./nodes.js";

const $ = (id) => document.getElementById(id);
const LISTED = 6; // nodes in words; the map has them all
const IN_FULL = 16; // cards with bar, legend and chart
let chosen = "";
let map = null;

/** What is shown below: [{heading: node}] and [uuid, gpu] in their order; null where there is one node. */
export function showNodes() {
  $("nodes").hidden = !several();
  if (!several()) return null;
  map ??= begin();
  const all = figures();
  if (chosen && !all.has(chosen)) chosen = "";
  showGroups();
  const group = $("node-group").value;
  const found = worstFirst(
    [...all.values()].filter((node) => matches(node, $("node-q").value)),
    group,
  );
  const used = usedByCard();
  map.show(found, { used, chosen, group, waits: waitedFor() });
  showSum([...all.values()], found);
  showList(found);
  return inFull(found, all);
}

function begin() {
  const again = () =>
    live.dispatchEvent(new CustomEvent("change", { detail: { changes: { nodes: {} }, whole: false } }));
  $("node-q").addEventListener("input", again);
  $("node-group").addEventListener("change", again);
  $("nodes").addEventListener("submit", (event) => event.preventDefault());
  const choose = (name) => {
    chosen = chosen === name ? "" : name;
    again();
  };
  $("node-list").addEventListener("click", (event) => {
    const button = event.target.closest("button[data-node]");
    if (button) choose(button.dataset.node);
  });
  return new CardMap($("node-map"), { chosen: choose, describe });
}

function describe(node, card) {
  if (!card) return node.name;
  const [uuid, gpu] = card;
  const held = usedByCard().get(uuid) ?? 0;
  return t("map_card", { node: node.name, index: gpu.index, used: size(held), total: size(gpu.total), name: gpu.name });
}

/** The cards that calls wait for. */
function waitedFor() {
  const found = new Set();
  for (const container of Object.values(live.state.containers)) {
    if (container.suspended_since === null) continue;
    for (const [uuid, claim] of Object.entries(container.gpus)) if (claim.waiting > 0) found.add(uuid);
  }
  return found;
}

function showGroups() {
  const select = $("node-group");
  const names = labels();
  select.parentElement.hidden = names.length === 0;
  keyed(
    select,
    ["", ...names],
    (name) => `label ${name}`,
    (name) => make("option", { value: name }, name || t("no_group")),
    () => {},
  );
}

function showSum(all, found) {
  const cards = all.reduce((sum, node) => sum + node.cards.length, 0);
  const used = all.reduce((sum, node) => sum + node.used, 0);
  const capacity = all.reduce((sum, node) => sum + node.capacity, 0);
  const away = all.filter(({ node }) => !node.alive).length;
  const said = t("nodes_sum", { nodes: all.length, cards, used: size(used), capacity: size(capacity) });
  put($("nodes-sum"), away ? `${said} · ${t("nodes_away", { count: away })}` : said);
  $("node-map").setAttribute("aria-label", $("nodes-sum").textContent);
  $("no-node").hidden = found.length > 0;
}

function state({ node }) {
  if (!node.alive) return node.seen_at ? t("node_away", { time: duration(now() - node.seen_at) }) : t("node_never");
  if (node.error) return t("node_engine");
  return node.drained_at ? t("node_drained") : "";
}

function showList(found) {
  keyed(
    $("node-list"),
    found.slice(0, LISTED),
    ({ name }) => name,
    ({ name }) =>
      make(
        "li",
        {},
        make("button", { type: "button", class: "link", "data-node": name }, name),
        make("span", { class: "tag" }),
        make("span", { class: "figures faint" }),
      ),
    (element, node) => {
      const [button, tag, figures] = element.children;
      button.setAttribute("aria-pressed", String(node.name === chosen));
      const said = state(node);
      put(tag, said);
      tag.hidden = !said;
      tag.classList.toggle("bad", !node.node.alive || Boolean(node.node.error));
      const { used, capacity, running, waiting } = node;
      put(
        figures,
        t("node_figures", { cards: node.cards.length, used: size(used), capacity: size(capacity), running, waiting }),
      );
    },
  );
  const more = found.length - LISTED;
  $("node-more").hidden = more <= 0;
  put($("node-more"), t("nodes_more", { count: more }));
}

/** The chosen node's cards, or those of the worst, as many as can be looked at. */
function inFull(found, all) {
  const nodes = chosen ? [all.get(chosen)] : found;
  const shown = [];
  let cards = 0;
  for (const node of nodes) {
    if (cards && cards + node.cards.length > IN_FULL) break;
    cards += node.cards.length;
    shown.push({ heading: node, state: state(node) }, ...node.cards);
  }
  return shown;
}
