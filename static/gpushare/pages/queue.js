// The queue's own page: another order is tried out first, described in words, and only then asked for.

import { showWaiting, waiting, withoutNode } from "../panels/waiting.js";
import { make, t } from "../parts/format.js";
import { put } from "../parts/keyed.js";
import { live } from "../parts/live.js";

const list = document.getElementById("queue");
const SHOWN = 200; // the foremost; with hundreds of nodes thousands may wait, and each is sent anew at each change
const more = document.getElementById("queue-more");
const sortable = "sortable" in list.dataset;
let order = null; // ids as somebody would have them; null while nobody has moved anything

function wanted() {
  const queue = waiting();
  if (!order) return queue;
  order = order.filter((id) => queue.some(([other]) => other === id)); // some are served meanwhile
  return [...queue].sort(([a], [b]) => place(order, a) - place(order, b));
}
const place = (ids, id) => (ids.includes(id) ? ids.indexOf(id) : ids.length);

function show() {
  const queue = wanted();
  document.getElementById("no-queue").hidden = queue.length > 0;
  showWaiting(list, queue.slice(0, SHOWN), { whole: queue, extra: () => (sortable ? [moves()] : []) });
  more.hidden = queue.length <= SHOWN;
  put(more, t("and_more", { count: queue.length - SHOWN }));
  if (sortable)
    for (const row of list.children) {
      row.draggable = true;
      row.tabIndex = 0;
    }
  showPreview(queue.map(([id]) => id));
  const placeless = withoutNode();
  document.getElementById("placeless").hidden = placeless.length === 0;
  showWaiting(document.getElementById("without-node"), placeless);
}

function moves() {
  const button = (step, label, arrow) =>
    make("button", { type: "button", class: "quiet icon", "data-move": step, "aria-label": t(label) }, arrow);
  return make("span", { class: "moves" }, button(-1, "move_up", "↑"), button(1, "move_down", "↓"));
}

function showPreview(now) {
  const before = waiting().map(([id]) => id);
  const moved = now
    .map((id, index) => ({ id, to: index + 1, from: before.indexOf(id) + 1 }))
    .filter(({ from, to }) => from !== to);
  const preview = document.getElementById("order-preview");
  if (!moved.length) order = null;
  preview.hidden = moved.length === 0;
  const acts = document.getElementById("order-acts");
  if (acts) acts.hidden = moved.length === 0;
  const named = (id) => live.state.containers[id].name;
  preview.firstElementChild.replaceChildren(
    ...moved.flatMap(({ id, from, to }) => {
      const passed = before.slice(0, from - 1).filter((other) => now.indexOf(other) > now.indexOf(id));
      return passed.length
        ? [make("li", {}, t("passes", { name: named(id), from, to, others: passed.map(named).join(", ") }))]
        : [];
    }),
  );
}

function move(id, step) {
  const ids = wanted().map(([other]) => other);
  const from = ids.indexOf(id),
    to = from + step;
  if (to < 0 || to >= ids.length) return;
  ids.splice(to, 0, ...ids.splice(from, 1));
  order = ids;
  show();
}

if (sortable) {
  list.addEventListener("click", (event) => {
    const button = event.target.closest("[data-move]");
    if (!button) return;
    move(button.closest("li").dataset.key, Number(button.dataset.move));
    button.focus();
  });
  list.addEventListener("keydown", (event) => {
    const row = event.target.closest("li");
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!step || !row) return;
    event.preventDefault();
    if (event.altKey) {
      move(row.dataset.key, step);
      row.focus();
    } else (step < 0 ? row.previousElementSibling : row.nextElementSibling)?.focus();
  });
  let dragged = null;
  list.addEventListener("dragstart", (event) => {
    dragged = event.target.closest("li");
    event.dataTransfer.effectAllowed = "move";
    event.dataTransfer.setData("text/plain", dragged.dataset.key);
    dragged.classList.add("dragged");
  });
  list.addEventListener("dragover", (event) => {
    const over = event.target.closest("li");
    if (!dragged || !over) return;
    event.preventDefault();
    const ids = [...list.children].map((row) => row.dataset.key);
    const step = ids.indexOf(over.dataset.key) - ids.indexOf(dragged.dataset.key);
    if (step) move(dragged.dataset.key, step);
  });
  list.addEventListener("drop", (event) => event.preventDefault());
  list.addEventListener("dragend", () => {
    dragged?.classList.remove("dragged");
    dragged = null;
  });
  document.getElementById("order-drop").addEventListener("click", () => {
    order = null;
    show();
  });
  document.getElementById("order-apply").addEventListener("click", async (event) => {
    const ids = wanted().map(([id]) => id);
    event.target.disabled = true;
    await htmx
      .ajax("POST", event.target.dataset.url, { target: "#toasts", swap: "beforeend", values: { id: ids.join(",") } })
      .catch(() => {});
    event.target.disabled = false;
    order = null;
    show();
  });
}

live.addEventListener("change", show);
