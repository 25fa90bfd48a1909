// The overview: what needs somebody, a bar for each GPU, totals, and the queue, drawn from the live feed.
import { showAttention } from "../panels/attention.js";
import { showPeople } from "../panels/byperson.js";
import { part, showBand } from "../panels/computing.js";
import { lastHour } from "../panels/lasthour.js";
import { showNodes } from "../panels/overnodes.js";
import { pageOf, showShortQueue } from "../panels/waiting.js";
import { make, mark, size, sum, t } from "../parts/format.js";
import { keyed, put } from "../parts/keyed.js";
import { live } from "../parts/live.js";
import { atRest } from "../parts/press.js";

const $ = (id) => document.getElementById(id);
// To a hundredth of a per cent, less than a tenth of a pixel: what nobody can see is not drawn again.
const share = (bytes, total) => `${total ? Math.max(0, Math.round((1e4 * bytes) / total)) / 100 : 0}%`;
const maySetCompute = "maySetCompute" in $("gpus").dataset;
const SOMETIMES = new Set(["idle", "reserved", "outside"]); // shown where there are some
const NAMED = 16; // in a legend, the biggest by name and first: a few are seen; the table has them all

/**
 * Who holds or was promised something on each of these GPUs, oldest first: their place in the bar does not jump about.
 * The containers are gone through once for all.
 */
let holding = new Map();
function findHolders(uuids) {
  holding = new Map(uuids.map((uuid) => [uuid, []]));
  for (const [id, container] of Object.entries(live.state.containers)) {
    if (container.finished_at !== null) continue;
    for (const [uuid, claim] of Object.entries(container.gpus)) holding.get(uuid)?.push({ id, container, claim });
  }
  for (const each of holding.values()) each.sort((a, b) => a.container.created_at - b.container.created_at);
}
const holders = (uuid) => holding.get(uuid) ?? [];

const cards = new Map(); // with their charts, for when they are shown again

function newHead({ heading }) {
  return make("header", { class: "node-head" }, make("h3", {}, heading.name), make("span", { class: "tag bad" }));
}

function showHead(element, { state, heading }) {
  const tag = element.lastElementChild;
  put(tag, state);
  tag.hidden = !state;
  tag.classList.toggle("bad", !heading.node.alive || Boolean(heading.node.error));
}

function newCard(uuid) {
  const card = make("article", { class: "card", "aria-labelledby": `gpu-${uuid}`, "data-id": `gpus/${uuid}` });
  card.append(
    make(
      "header",
      {},
      make("h3", { id: `gpu-${uuid}` }),
      make("span", { class: "tag simulated", hidden: true }, t("simulated")),
      make("span", { class: "tag bad drained", hidden: true }, t("gpu_drained")),
      maySetCompute
        ? make("button", { type: "button", class: "tag mode", "data-act": "compute" })
        : make("span", { class: "tag mode" }),
      make("span", { class: "vitals" }),
    ),
    make("p", { class: "held" }, make("b"), make("span", { class: "sum" })),
    make("div", { class: "bar", role: "img" }),
    make("div", { class: "band", role: "img", hidden: true }),
    make("ul", { class: "legend" }),
    make("div", { class: "chart", role: "img", "aria-label": t("last_hour") }),
    make(
      "p",
      { class: "legend chart-legend" },
      make("span", { class: "key held-key" }),
      t("held"),
      make("span", { class: "key busy-key" }),
      t("busy"),
    ),
  );
  return card;
}

function showCard(card, [uuid, gpu]) {
  const held = holders(uuid);
  const sum = (field) => held.reduce((total, { claim }) => total + claim[field], 0);
  const used = sum("used");
  const granted = sum("granted");
  const unexplained = sum("unexplained");
  const reserved = Math.max(0, gpu.capacity - granted - gpu.free); // for guaranteed containers, beyond their leases
  put(card.querySelector("h3"), `${gpu.index} · ${gpu.name}`);
  card.querySelector(".simulated").hidden = !gpu.simulated;
  const drained = card.querySelector(".drained");
  drained.hidden = !gpu.drained_at;
  drained.title = gpu.drain_reason;
  const vitals = [
    gpu.utilisation === null ? null : t("utilisation", { value: gpu.utilisation }),
    gpu.temperature === null ? null : `${gpu.temperature} °C`,
    gpu.power === null ? null : `${Math.round(gpu.power)} W`,
  ]
    .filter(Boolean)
    .join("  ·  ");
  put(card.querySelector(".vitals"), vitals);
  // What is beyond the containers' reach: foreign memory, and what the driver keeps of a real card.
  const outside = Math.max(0, gpu.total - Math.max(granted, used) - reserved - gpu.free);
  const idle = Math.max(0, granted - used);
  showSum(card.querySelector(".held"), gpu.total, { used, idle, reserved, free: gpu.free, outside });
  showMode(card.querySelector(".mode"), gpu);
  showBar(card.querySelector(".bar"), gpu, held, { unexplained, reserved });
  const computed = held.map(({ id, container: { name, colour }, claim }) => ({
    id,
    name,
    colour,
    part: part(claim.had_lately),
  }));
  showBand(card.querySelector(".band"), computed);
  showLegend(card.querySelector(".legend"), gpu, held, { idle, unexplained, reserved });
}

/** "4 GiB held + 0.5 GiB free + 0.5 GiB unavailable = 5 GiB": so much is the card. What may be missing is shown if it is there. */
function showSum(line, total, bytes) {
  const shown = sum(Object.values(bytes), total);
  const [held, ...others] = Object.keys(bytes)
    .map((key, index) => ({ key, size: shown.parts[index] }))
    .filter(({ key }) => bytes[key] || !SOMETIMES.has(key));
  put(line.firstElementChild, held.size);
  const more = others.map(({ key, size }) => t(`sum_${key}`, { size })).join(" + ");
  put(line.lastElementChild, ` ${t("sum", { more, total: shown.total })}`);
}

/** How containers that compute share the card; for admins a button that changes it. */
function showMode(tag, gpu) {
  put(tag, t(`compute_${gpu.compute}`));
  tag.title = gpu.compute_why;
  tag.dataset.fieldCompute = gpu.compute === "turns" ? "shared" : "turns";
  tag.dataset.fieldIndex = gpu.index;
}

/**
 * What of a card is out of the containers' reach, in bytes. Of one that is capped, foreign memory takes only what no
 * longer fits beside the cap; what is unexplained is a part of it.
 */
function outsideOf(gpu, unexplained) {
  const lost = gpu.most - gpu.capacity;
  const ours = Math.min(unexplained, lost);
  return { unexplained: ours, foreign: lost - ours, kept: gpu.total - gpu.most };
}

function showBar(bar, gpu, held, { unexplained, reserved }) {
  const parts = held.flatMap(({ id, container, claim }) => [
    {
      key: `${id} used`,
      kind: "used",
      bytes: claim.used,
      container,
      label: t("bar_used", { name: container.name, size: size(claim.used) }),
    },
    {
      key: `${id} idle`,
      kind: "idle",
      bytes: Math.max(0, claim.granted - claim.used),
      container,
      label: t("bar_idle", { name: container.name, size: size(claim.granted - claim.used) }),
    },
  ]);
  parts.push({
    key: "reserved",
    kind: "reserved",
    bytes: reserved,
    label: t("bar_reserved", { size: size(reserved) }),
  });
  for (const [kind, bytes] of Object.entries(outsideOf(gpu, unexplained)))
    parts.push({ key: kind, kind, bytes, label: t(`bar_${kind}`, { size: size(bytes) }) });
  const shown = parts.filter((part) => part.bytes > 0);
  keyed(
    bar,
    shown,
    (part) => part.key,
    (part) => make("span", { class: part.kind }),
    (element, part) => {
      const width = share(part.bytes, gpu.total);
      if (element.style.width !== width) element.style.width = width;
      if (part.container) element.dataset.mark = mark(part.container.colour);
      if (element.title !== part.label) element.title = part.label;
    },
  );
  const label = shown.map((part) => part.label).join(", ") || t("bar_free");
  if (bar.getAttribute("aria-label") !== label) bar.setAttribute("aria-label", label);
}

function showLegend(legend, gpu, held, { idle, unexplained, reserved }) {
  const biggest = [...held].sort((a, b) => b.claim.used - a.claim.used);
  const entries = biggest.slice(0, NAMED).map(({ id, container, claim }) => ({
    key: id,
    href: pageOf(id),
    mark: mark(container.colour),
    name: container.name,
    kind: container.state === "swapped" ? "swapped" : "",
    figures: container.swapped
      ? t("swapped", { size: size(container.swapped) })
      : `${size(claim.used)} / ${size(claim.quota)}`,
  }));
  const rest = biggest.slice(NAMED);
  if (rest.length)
    entries.push({
      key: "rest",
      kind: "rest",
      name: t("and_more", { count: rest.length }),
      figures: size(rest.reduce((sum, { claim }) => sum + claim.used, 0)),
    });
  if (idle) entries.push({ key: "idle", kind: "idle", name: t("idle"), figures: size(idle) });
  if (reserved) entries.push({ key: "reserved", kind: "reserved", name: t("reserved"), figures: size(reserved) });
  for (const [kind, bytes] of Object.entries(outsideOf(gpu, unexplained)))
    if (bytes > 0) entries.push({ key: kind, kind, name: t(kind), figures: size(bytes) });
  entries.push({ key: "free", kind: "free", name: t("free"), figures: size(gpu.free) });
  keyed(
    legend,
    entries,
    (entry) => entry.key,
    (entry) =>
      make(
        "li",
        {},
        make("span", { class: `mark ${entry.kind ?? ""}` }),
        entry.href ? make("a", { href: entry.href }) : make("span"),
        make("span", { class: "faint" }),
      ),
    (element, entry) => {
      if (entry.mark) element.firstElementChild.dataset.mark = entry.mark;
      element.firstElementChild.classList.toggle("swapped", entry.kind === "swapped");
      put(element.children[1], entry.name);
      if (entry.href) element.children[1].title = entry.name;
      put(element.children[2], entry.figures);
    },
  );
}

function showTotals() {
  const counts = { running: 0, suspended: 0, paused: 0, swapped: 0 };
  for (const { state } of Object.values(live.state.containers)) if (state in counts) counts[state] += 1;
  keyed(
    $("totals"),
    Object.entries(counts),
    ([state]) => state,
    ([state]) => make("li", { "data-state": state }, make("b"), make("span")),
    (element, [state, count]) => {
      element.classList.toggle("none", count === 0);
      put(element.firstElementChild, String(count));
      put(element.lastElementChild, t(`state_${state}`).toLowerCase());
    },
  );
}

function showQueue() {
  $("no-queue").hidden = showShortQueue($("queue"), $("queue").dataset.all) > 0;
  put($("policy"), live.state.node.policy ?? "");
}

const charted = new Set();

function showChart(uuid) {
  const place = $("gpus").querySelector(`[data-key="${CSS.escape(uuid)}"] .chart`);
  if (charted.has(uuid)) return;
  charted.add(uuid);
  lastHour(place, uuid, live.state.gpus[uuid].total);
}

function cardOf(uuid) {
  if (!cards.has(uuid)) cards.set(uuid, newCard(uuid));
  return cards.get(uuid);
}

function showCards() {
  const all = Object.entries(live.state.gpus);
  $("no-gpus").hidden = all.length > 0;
  const shown = showNodes() ?? all.sort(([, a], [, b]) => a.index - b.index);
  const gpus = shown.filter((item) => !item.heading);
  findHolders(gpus.map(([uuid]) => uuid));
  keyed(
    $("gpus"),
    shown,
    (item) => (item.heading ? `node ${item.heading.name}` : item[0]),
    (item) => (item.heading ? newHead(item) : cardOf(item[0])),
    (element, item) => (item.heading ? showHead(element, item) : showCard(element, item)),
  );
  for (const [uuid] of gpus) showChart(uuid);
}

const news = new Set(); // the sections of the feed that have changed since the last drawing
function show() {
  if (news.has("attention")) showAttention();
  if (["node", "nodes", "gpus", "containers"].some((section) => news.has(section))) {
    showCards();
    showTotals();
    showQueue();
    showPeople();
  }
  news.clear();
}

let asked = false;
live.addEventListener("change", ({ detail: { changes } }) => {
  for (const section of Object.keys(changes)) news.add(section);
  if (asked) return;
  asked = true;
  requestAnimationFrame(async () => {
    await atRest();
    asked = false;
    show();
  });
});
