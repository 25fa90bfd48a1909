// What needs somebody now, above everything else: by person, each with what can be done about it.
import { duration, make, now, t } from "./format.js";
import { keyed, put } from "./keyed.js";
import { live } from "./live.js";
import { pageOf } from "./waiting.js";

const $ = (id) => document.getElementById(id);

/** The people in the order of their first item; what is the host's comes first. */
function people() {
  const found = new Map();
  const items = Object.entries(live.state.attention).sort(([, a], [, b]) => a.place - b.place);
  for (const [key, item] of items) {
    if (!found.has(item.person)) found.set(item.person, []);
    found.get(item.person).push({ key, ...item });
  }
  return [...found].sort(([a], [b]) => Number(b === "") - Number(a === ""));
}

/** A button; for what moves memory also how fast that is, as the question about it tells. */
function button(act) {
  const { out, back } = $("attention").dataset;
  const rates = act === "free" ? { "data-out": out, "data-back": back } : {};
  return make(
    "button",
    { type: "button", class: act === "kill" ? "danger" : false, "data-act": act, ...rates },
    t(`do_${act}`),
  );
}

function newItem({ container }, acts) {
  return make(
    "li",
    container ? { "data-id": container } : {},
    container ? make("a", { class: "what", href: pageOf(container) }) : make("span", { class: "what" }),
    make("time", { class: "faint" }),
    make("span", { class: "acts" }, ...acts.map(button)),
  );
}

function showItem(element, { message, since }) {
  const [what, time] = element.children;
  put(what, message);
  if (what.title !== message) what.title = message;
  time.hidden = since === null;
  if (since === null) return;
  time.dataset.since = since;
  put(time, duration(now() - since));
}

const FEW = 3; // items while nobody asks for more
const OF_ONE = 2; // and so many of one person
let all = false;

/** The first items of the first people, and how many are left out. */
function shorten(groups) {
  const count = groups.reduce((sum, [, items]) => sum + items.length, 0);
  if (all || count <= FEW) return [groups, 0];
  const short = [];
  let left = FEW;
  for (const [person, items] of groups) {
    const some = items.slice(0, Math.min(OF_ONE, left));
    if (some.length) short.push([person, some]);
    left -= some.length;
  }
  return [short, count - FEW + left];
}

$("attention-more")?.addEventListener("click", () => {
  all = !all;
  showAttention();
});

function showMore(groups, more) {
  const button = $("attention-more");
  button.hidden = !more && !(all && groups.reduce((sum, [, items]) => sum + items.length, 0) > FEW);
  button.setAttribute("aria-expanded", String(all));
  put(button, all ? t("fewer") : t("and_more", { count: more }));
}

export function showAttention() {
  const { me, steers } = $("attention").dataset;
  const may = (item) => (steers === "all" || (steers === "own" && item.person === me) ? item.acts : []);
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
    (element, [person, items]) => {
      put(element.firstElementChild, person || t("of_the_host"));
      element.firstElementChild.title = person;
      keyed(
        element.lastElementChild,
        items,
        ({ key }) => key,
        (item) => newItem(item, may(item)),
        showItem,
      );
    },
  );
}
