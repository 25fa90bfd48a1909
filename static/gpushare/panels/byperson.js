// The containers by person: who holds what, who waits, each to be folded. The switch stands in the address.
import { make, mark, size, t } from "../parts/format.js";
import { keyed, put } from "../parts/keyed.js";
import { live } from "../parts/live.js";
import { pageOf, personOf } from "./waiting.js";

const place = document.getElementById("by-person");
const buttons = [...document.querySelectorAll("[data-view]")];
const { me, steers, url } = place?.dataset ?? {};
const KEPT = "containers-view"; // as last chosen in this browser
const chosen = () => new URL(location.href).searchParams.get("view") ?? localStorage.getItem(KEPT) ?? "";
const sum = ({ gpus }, field) => Object.values(gpus).reduce((total, claim) => total + claim[field], 0);

/** Each person with their living containers, holders by size before who waits by place; who holds most comes first. */
function people() {
  const found = new Map();
  for (const [id, container] of Object.entries(live.state.containers)) {
    if (container.finished_at !== null) continue;
    const one = found.get(container.owner) ?? { name: container.owner, held: 0, quota: 0, waiting: 0, all: [] };
    const used = sum(container, "used");
    one.held += used;
    one.quota += sum(container, "quota");
    one.waiting += container.suspended_since === null ? 0 : 1;
    one.all.push({ id, used, ...container });
    found.set(container.owner, one);
  }
  for (const { all } of found.values())
    all.sort((a, b) => (a.queue_position ?? 0) - (b.queue_position ?? 0) || b.used - a.used);
  return [...found.values()].sort((a, b) => b.held - a.held || a.name.localeCompare(b.name));
}

function newPerson({ name }) {
  const summary = make("summary", {}, make("b"), make("span", { class: "faint" }));
  const may = steers === "all" || (steers === "own" && name === me);
  const stop = { type: "button", class: "danger", "data-bulk": "stop", "data-owner": name, "data-url": url };
  return make(
    "li",
    {},
    make("a", { href: personOf(name) }, name),
    make("details", {}, summary, make("ul", { class: "plain" })),
    ...(may ? [make("button", stop, t("stop_all"))] : []),
  );
}

function showPerson(element, { held, quota, waiting, all }) {
  const [summary, list] = element.querySelector("details").children;
  put(summary.firstElementChild, size(held));
  put(summary.lastElementChild, t("person_figures", { quota: size(quota), holding: all.length - waiting, waiting }));
  summary.classList.toggle("waits", waiting > 0);
  keyed(
    list,
    all,
    ({ id }) => id,
    ({ id }) =>
      make(
        "li",
        {},
        make("span", { class: "mark" }),
        make("a", { href: pageOf(id) }),
        make("span", { class: "chip" }),
        make("span"),
        make("span", { class: "faint" }),
      ),
    (row, container) => {
      const [colour, name, state, figures, why] = row.children;
      row.dataset.state = container.state;
      colour.dataset.mark = mark(container.colour);
      put(name, container.name);
      put(state, t(`state_${container.state}`));
      put(figures, `${size(container.used)} / ${size(sum(container, "quota"))}`);
      put(why, container.queue_reason);
    },
  );
}

export function showPeople() {
  if (!place || place.hidden) return;
  keyed(place, people(), ({ name }) => name, newPerson, showPerson);
}

function choose(view) {
  const byPerson = view === "people";
  for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.view === view));
  place.hidden = !byPerson;
  for (const id of ["rows", "filters"]) document.getElementById(id).hidden = byPerson;
  showPeople();
}

for (const button of buttons)
  button.addEventListener("click", () => {
    const address = new URL(location.href);
    if (button.dataset.view) address.searchParams.set("view", button.dataset.view);
    else address.searchParams.delete("view");
    history.replaceState(history.state, "", address);
    localStorage.setItem(KEPT, button.dataset.view);
    choose(button.dataset.view);
  });
if (place) choose(chosen());
