// What needs somebody now, above everything else: by person, causes with what hangs on them beneath, and what to do.
import { duration, local, make, now, t } from "../parts/format.js";
import { keyed, put } from "../parts/keyed.js";
import { live } from "../parts/live.js";
import "../parts/copy.js";
import { pageOf, personOf } from "./waiting.js";

const $ = (id) => document.getElementById(id);

/**
 * The people in the order of their first item; what is the host's comes first. `hung`: what an item is the cause of, the
 * reader's own first. What is announced stands above the page already.
 */
function people() {
  const found = new Map();
  const items = Object.entries(live.state.attention)
    .filter(([, { kind }]) => kind !== "announced")
    .sort(([, a], [, b]) => a.place - b.place);
  const all = new Map(items.map(([key, item]) => [key, { key, hung: [], ...item }]));
  for (const item of all.values()) {
    const cause = all.get(item.because);
    if (cause) cause.hung.push(item);
    else found.set(item.person, [...(found.get(item.person) ?? []), item]);
  }
  for (const { hung } of all.values()) hung.sort((a, b) => Number(b.person === me) - Number(a.person === me));
  return [...found].sort(([a], [b]) => Number(b === "") - Number(a === ""));
}

const { me, steers, orders, launch, many, out, back } = $("attention")?.dataset ?? {};
const rates = { "data-out": out, "data-back": back }; // how fast memory is moved, as the question about it tells

/** What this person may do about it (web/services/attention/item.py, acts_of). */
function may({ person, acts }) {
  if (steers !== "all" && !(steers === "own" && person === me)) return [];
  return acts.filter((act) => act !== "first" || orders !== undefined);
}

function button(act, { container }) {
  if (act === "again") return make("a", { class: "button", href: `${launch}?from=${container}` }, t("do_again"));
  const more = act === "free" ? rates : {};
  const look = act === "kill" && "danger";
  return make("button", { type: "button", class: look, "data-act": act, ...more }, t(`do_${act}`));
}

function toCopy(command) {
  return make("button", { type: "button", "data-copy-text": command, title: command }, t("do_copy"));
}

/** What can be done to several of one kind at once. */
function forAll(act, some) {
  const ids = some.map(({ container }) => container).join(" ");
  const more = act === "free" ? rates : {};
  const data = { "data-bulk": act, "data-url": many, "data-ids": ids, ...more };
  const text = t(`many_${act}`, { count: some.length });
  return make("button", { type: "button", class: act === "kill" && "danger", ...data }, text);
}

function newLine({ container, some }) {
  const what =
    container && !some ? make("a", { class: "what", href: pageOf(container) }) : make("span", { class: "what" });
  what.append(make("b"), document.createTextNode(""));
  return make(
    "li",
    container && !some ? { "data-id": container } : {},
    what,
    make("a", { class: "faint" }),
    make("time", { class: "faint" }),
    make("span", { class: "acts" }),
    make("ul", { class: "hung" }),
  );
}

function showLine(line, item) {
  const { since, some, command, person, because, hung = [] } = item;
  const [what, whose, time, acts, beneath] = line.children;
  const message = local(item.message);
  whose.hidden = !because;
  if (because) {
    put(whose, person);
    whose.href = personOf(person);
  }
  beneath.hidden = hung.length === 0;
  keyed(beneath, hung, ({ key }) => key, newLine, showLine);
  const [, name, rest] = message.match(/^("[^"]*")?(.*)$/s);
  put(what.firstChild, name ?? "");
  if (what.lastChild.data !== rest) what.lastChild.data = rest;
  if (what.title !== message) what.title = message;
  time.hidden = since === null;
  if (since !== null) {
    time.dataset.since = since;
    put(time, duration(now() - since));
  }
  const able = some ? item.acts : may(item);
  const said = JSON.stringify([able, command, some?.map(({ container }) => container)]);
  if (acts.dataset.said === said) return; // a button that is under a pointer stays
  acts.dataset.said = said;
  const made = able.map((act) => (some ? forAll(act, some) : button(act, item)));
  acts.replaceChildren(...made, ...(command && steers === "all" ? [toCopy(command)] : []));
}

const TOGETHER = ["resume", "free", "kill"]; // what can be done to several at once
const WAITERS = new Set(["waiting", "swapped_waiting"]); // they are not at fault: nothing is offered for all of them

/** Of each kind that this person has several of, a line with what can be done about all of them. */
function together(items) {
  const kinds = new Map();
  for (const item of items) kinds.set(item.kind, [...(kinds.get(item.kind) ?? []), item]);
  return [...kinds]
    .map(([kind, some]) => ({ key: `all ${kind}`, kind, some }))
    .filter(({ kind, some }) => some.length > 1 && !WAITERS.has(kind))
    .map((line) => ({ ...line, acts: TOGETHER.filter((act) => line.some.every((item) => may(item).includes(act))) }))
    .filter(({ acts }) => acts.length)
    .map((line) => ({ ...line, message: t(`all_${line.kind}`, { count: line.some.length }), since: null }));
}

const FEW = 3; // lines while nobody asks for more
const OF_ONE = 2; // and so many of one person, or beneath one cause
let all = false;

const count = (items) => items.reduce((sum, { hung }) => sum + 1 + hung.length, 0);
const countAll = (groups) => groups.reduce((sum, [, items]) => sum + count(items), 0);

/** The first lines of the first people, and how many items are left out. */
function shorten(groups) {
  if (all || countAll(groups) <= FEW)
    return [groups.map(([person, items]) => [person, [...together(items), ...items]]), 0];
  const short = [];
  let left = FEW;
  let shown = 0;
  for (const [person, items] of groups) {
    const some = [...together(items), ...items]
      .slice(0, Math.min(OF_ONE, left))
      .map((line) => ({ ...line, hung: line.hung?.slice(0, OF_ONE) ?? [] }));
    if (some.length) short.push([person, some]);
    left -= some.length;
    shown += count(some.filter((line) => !line.some));
  }
  return [short, countAll(groups) - shown];
}

$("attention-more")?.addEventListener("click", () => {
  all = !all;
  showAttention();
});

function showMore(groups, more) {
  const button = $("attention-more");
  button.hidden = !more && !(all && countAll(groups) > FEW);
  button.setAttribute("aria-expanded", String(all));
  put(button, all ? t("fewer") : t("and_more", { count: more }));
}

export function showAttention() {
  const groups = people();
  const [shown, more] = shorten(groups);
  showMore(groups, more);
  $("calm").hidden = groups.length > 0;
  $("attention").parentElement.classList.toggle("calm", groups.length === 0);
  keyed(
    $("attention"),
    shown,
    ([person]) => `of ${person}`,
    () => make("li", {}, make("h3"), make("ul")),
    (element, [person, lines]) => {
      const title = element.firstElementChild;
      title.title = person;
      if (!person) put(title, t("of_the_host"));
      else if (!title.firstElementChild) title.append(make("a", { href: personOf(person) }, person));
      keyed(element.lastElementChild, lines, ({ key }) => key, newLine, showLine);
    },
  );
}
