// Buttons that do something: [data-act] acts on its row's (or its own) container, [data-bulk] on those selected.
// The answer shown is the server's, which waited for the scheduler's. What destroys something asks first.
import { duration, make, size, t } from "./format.js";
import { live } from "./live.js";

const toasts = document.getElementById("toasts");
const dialog = document.getElementById("ask");
const DESTROYS = new Set(["kill", "remove"]);
const STAYS = 7500;

// Not a submit button: the first one of a form is what Enter in its field presses.
document.getElementById("ask-no").addEventListener("click", () => dialog.close("no"));

/** Asks in the dialog; resolves to the note given, or null if the answer is no. */
export function ask({ title, text, yes, danger = false, note = true, names = [] }) {
  for (const [id, value] of [
    ["ask-title", title],
    ["ask-text", text],
    ["ask-yes", yes],
  ]) {
    document.getElementById(id).textContent = value;
  }
  const list = document.getElementById("ask-names");
  list.hidden = names.length === 0;
  list.replaceChildren(...names.map((name) => make("li", {}, name)));
  const input = document.getElementById("ask-note");
  input.value = "";
  input.hidden = dialog.querySelector("label").hidden = !note;
  document.getElementById("ask-yes").className = danger ? "danger primary" : "primary";
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes" ? input.value : null), { once: true });
  });
}

export function toast(kind, message) {
  const box = make(
    "div",
    { class: `toast ${kind}` },
    make("p", {}, message),
    make("button", { type: "button", class: "quiet icon", "data-close": true, "aria-label": t("close") }, "×"),
  );
  toasts.append(box);
  return box;
}

/** Posts one action on one container, "queue" or "gpus/…"; the server answers with a toast. */
export async function act(action, id, values = {}) {
  const [room, name] = id.startsWith("gpus/") ? ["gpus", id.slice(5)] : ["containers", id];
  const path = id === "queue" ? `queue/${action}/` : `${room}/${encodeURIComponent(name)}/${action}/`;
  const url = new URL(path, new URL(document.body.dataset.base, location.href));
  try {
    await htmx.ajax("POST", url.pathname, { target: toasts, swap: "beforeend", values });
  } catch {
    /* shown by htmx:sendError */
  }
}

/** Bytes of GPU memory that these containers use together. */
function used(ids) {
  const claims = ids.flatMap((id) => Object.values(live.state.containers[id]?.gpus ?? {}));
  return claims.reduce((sum, claim) => sum + claim.used, 0);
}

/** What freeing their memory means, in bytes and seconds. */
function freeing(ids, rates) {
  const bytes = used(ids);
  const [out, back] = [rates.out, rates.back].map((rate) => duration(Math.max(1, bytes / rate)));
  return t("free_text", { size: size(bytes), out, back });
}

/** What is asked before an action, by its name; nothing for one that is done at once. */
function question(action, id, name, rates, values) {
  if (action === "free") {
    const paused = live.state.containers[id]?.state === "paused";
    if (used([id]) === 0) return null; // there is nothing to free
    return {
      title: t(paused ? "free_paused_title" : "free_title", { name }),
      text: freeing([id], rates),
      yes: t(paused ? "do_free" : "free_yes"),
    };
  }
  if (action === "compute" && values.index) {
    const mode = values.compute;
    return {
      title: t(`compute_title_${mode}`, { index: values.index }),
      text: t(`compute_text_${mode}`),
      yes: t("compute_yes"),
      note: false,
    };
  }
  if (!DESTROYS.has(action)) return null;
  return { title: t(`${action}_title`, { name }), text: t(`${action}_text`), yes: t(`${action}_yes`), danger: true };
}

/** Nobody can press the button until this is done. */
async function pressed(button, work) {
  button.disabled = true;
  button.setAttribute("aria-busy", "true");
  await work();
  button.disabled = false;
  button.removeAttribute("aria-busy");
}

async function one(button) {
  const row = button.closest("[data-id]");
  const id = row.dataset.id;
  const action = button.dataset.act;
  const values = {};
  for (const [key, value] of Object.entries(button.dataset)) {
    if (key.startsWith("field") && key.length > 5) values[key.slice(5).toLowerCase()] = value;
  }
  const asked = question(action, id, live.state.containers[id]?.name ?? row.dataset.name ?? "", button.dataset, values);
  if (asked) {
    const note = await ask(asked);
    if (note === null) return;
    values.note = note;
  }
  await pressed(button, () => act(action, id, values));
  button.closest(".toast")?.remove();
}

const selected = () =>
  [...document.querySelectorAll('#rows input[name="id"]:checked')]
    .filter((box) => box.checkVisibility({ visibilityProperty: true }))
    .map((box) => box.value);

/** Of these containers the names, and whose they are. */
function namesOf(ids) {
  return ids.map((id) => live.state.containers[id]).map((each) => (each ? `${each.name} · ${each.owner}` : "–"));
}

/** What is asked before an action on several; nothing for one that can be taken back. */
function questionOfMany(action, ids, rates) {
  const count = ids.length;
  const names = namesOf(ids);
  if (action === "kill" || action === "stop") {
    return {
      title: t(`${action}_many_title`, { count }),
      text: t(`${action}_many_text`),
      yes: t(`${action}_many_yes`, { count }),
      danger: true,
      names,
    };
  }
  if (action !== "free") return null;
  return { title: t("free_many_title", { count }), text: freeing(ids, rates), yes: t("many_free", { count }), names };
}

/** All that this person has now. */
function livingOf(owner) {
  return Object.entries(live.state.containers)
    .filter(([, each]) => each.owner === owner && each.finished_at === null)
    .map(([id]) => id);
}

async function many(button) {
  const { owner, bulk: action } = button.dataset;
  const ids = owner ? livingOf(owner) : (button.dataset.ids?.split(" ") ?? selected());
  if (ids.length === 0) {
    toast("note", t("nothing_to_stop"));
    return;
  }
  const values = {};
  const asked = questionOfMany(action, ids, button.dataset);
  if (asked) {
    const note = await ask(asked);
    if (note === null) return;
    values.note = note;
  }
  const sent = { target: toasts, swap: "beforeend", values: { ...values, id: ids, action } };
  const sign = toast("note", t(`${action}_many_goes_on`, { count: ids.length })); // some take seconds
  await pressed(button, () => htmx.ajax("POST", button.dataset.url, sent).catch(() => {}));
  sign.remove();
  document.dispatchEvent(new CustomEvent("acted", { detail: ids }));
}

/** What was done to a container that has ended meanwhile cannot be undone any more. */
function dropUndo() {
  for (const button of toasts.querySelectorAll("[data-act][data-id]")) {
    const { id } = button.dataset;
    const container = live.state.containers[id];
    if (id !== "queue" && !id.startsWith("gpus/") && (!container || container.finished_at !== null)) button.remove();
  }
}
live.addEventListener("change", dropUndo);

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if ("close" in button.dataset) button.closest(".toast").remove();
  else if (button.dataset.act) one(button);
  else if (button.dataset.bulk) many(button);
});

for (const failure of ["htmx:sendError", "htmx:timeout"]) {
  document.addEventListener(failure, ({ detail }) => {
    if (detail.requestConfig.verb !== "get") toast("bad", t("not_sent")); // a list that renews itself did nothing anyway
  });
}

// Good news leaves by itself; bad news stays until it is closed.
new MutationObserver((records) => {
  for (const node of records.flatMap((record) => [...record.addedNodes])) {
    if (node.matches?.(".toast.good")) setTimeout(() => node.remove(), STAYS);
  }
}).observe(toasts, { childList: true });
