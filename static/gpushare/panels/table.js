// The table of containers. The server decides what is listed, in which order and on which page; figures and states of
// the rows shown are brought up to date from the live feed, and a change in who exists asks the server again.
import { toast } from "../parts/actions.js";
import { duration, size, stamp, t } from "../parts/format.js";
import { put } from "../parts/keyed.js";
import { live } from "../parts/live.js";
import { isPressed } from "../parts/press.js";
import { showState } from "./computing.js";
import { load } from "./load.js";

const rows = document.getElementById("rows");
const filters = document.getElementById("filters");
const PAST = new Set(["uncapped", "unexplained"]);
const PATIENCE = 800; // at most about one reload a second, however many come and go

if (rows) {
  const picked = new Set();
  let timer = null;

  const total = (container, field) => Object.values(container.gpus).reduce((sum, claim) => sum + claim[field], 0);
  function patch(row, container) {
    const field = (name) => row.querySelector(`[data-field="${name}"]`);
    showState(row, field("state"), container);
    const code = container.exit_code === null ? "" : t("exit_code_of", { code: container.exit_code });
    put(field("load"), container.finished_at === null ? load(container) : code);
    field("suspended").dataset.since = container.suspended_since ?? "";
    showAge(field("age"), container);
    field("past").hidden = !pastTheShim().has(row.dataset.id);
    if (!Object.keys(container.gpus).length) return; // on no GPU yet, or no more: what the server wrote stands
    const [used, quota, peak] = ["used", "quota", "peak"].map((name) => total(container, name));
    put(field("figures"), `${size(used)} / ${size(quota)} / ${size(peak)}`);
    fill(field("meter"), used, quota, peak);
  }

  /** How long ago it was launched; of one that has ended, how long it ran. */
  function showAge(age, { finished_at, started_at }) {
    if (finished_at === null) return;
    delete age.dataset.since;
    const time = started_at === null ? "–" : duration(finished_at - started_at);
    put(age, t(started_at === null ? "not_ran" : "ran", { time, end: stamp(finished_at).slice(0, 16) }));
  }

  /** Containers of which something holds memory that nobody has granted, or that the shim is not in. */
  function pastTheShim() {
    const items = Object.values(live.state.attention);
    return new Set(items.filter(({ kind }) => PAST.has(kind)).map(({ container }) => container));
  }

  function fill(meter, used, quota, peak) {
    const part = (bytes) => (quota ? Math.min(100, (100 * bytes) / quota) : 0);
    const [now, most] = meter.children;
    now.style.width = `${part(used)}%`;
    most.style.left = `calc(${part(peak)}% - 2px)`;
    most.hidden = !peak;
  }

  function fillAll() {
    for (const meter of rows.querySelectorAll(".meter")) {
      fill(meter, ...["used", "quota", "peak"].map((name) => Number(meter.dataset[name])));
    }
  }
  fillAll();

  function patchAll(ids) {
    for (const row of rows.querySelectorAll("tr[data-id]")) {
      const container = live.state.containers[row.dataset.id];
      if (container && (!ids || row.dataset.id in ids)) patch(row, container);
    }
  }

  function reload() {
    if (timer) return;
    timer = setTimeout(() => {
      timer = null;
      htmx.trigger(filters, "refresh");
    }, PATIENCE);
  }

  live.addEventListener("change", ({ detail: { changes, whole } }) => {
    const all = whole || "attention" in changes;
    patchAll(all ? null : (changes.containers ?? {})); // at once: in the next frame, and none to come while hidden
    const cameOrWent = Object.entries(changes.containers ?? {}).some(
      ([, change]) => change === null || "created_at" in change,
    );
    if (cameOrWent && !(whole && sameAsShown())) reload();
  });

  /** After the first snapshot: does the page as served already list what lives? */
  function sameAsShown() {
    const shown = new Set([...rows.querySelectorAll("tr[data-id]")].map((row) => row.dataset.id));
    const known = Object.keys(live.state.containers);
    return rows.querySelector(".pager") !== null || (known.length === shown.size && known.every((id) => shown.has(id)));
  }

  // ---- what the server is asked for ----
  const choose = (name, value) => {
    filters.elements[name].value = value;
  };
  filters.addEventListener("input", () => choose("page", 1));
  filters.addEventListener("submit", (event) => event.preventDefault());
  rows.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.sort) {
      choose("sort", button.dataset.sort);
      choose("page", 1);
    } else if (button.dataset.page) choose("page", button.dataset.page);
    else if ("clear" in button.dataset) {
      filters.reset();
      choose("state", "all");
      choose("q", "");
      for (const select of filters.querySelectorAll("select:not(#state)")) select.value = "";
    } else return;
    htmx.trigger(filters, "refresh");
  });

  /** What is chosen stands in the address: it can be sent, and is there after a reload. */
  filters.addEventListener("htmx:afterRequest", () => {
    if (!("address" in filters.dataset)) return;
    const chosen = new URL(location.href);
    for (const [name, value] of new FormData(filters)) {
      if (value && !(name === "page" && value === "1")) chosen.searchParams.set(name, value);
      else chosen.searchParams.delete(name);
    }
    history.replaceState(history.state, "", chosen);
  });

  // ---- selection ----
  const bulk = document.getElementById("bulk");
  /** Nothing can be done to who has ended: style/table.css hides their boxes. */
  const boxesOfTheLiving = () =>
    [...rows.querySelectorAll('input[name="id"]')].filter((box) => box.checkVisibility({ visibilityProperty: true }));
  function showPicked() {
    const boxes = boxesOfTheLiving();
    const checked = boxes.filter((box) => box.checked);
    bulk.hidden = checked.length === 0;
    put(document.getElementById("bulk-count"), t("selected", { count: checked.length }));
    const all = document.getElementById("pick-all");
    if (all) {
      all.checked = boxes.length > 0 && checked.length === boxes.length;
      all.indeterminate = checked.length > 0 && !all.checked;
    }
  }
  rows.addEventListener("change", (event) => {
    if (event.target.id === "pick-all") {
      for (const box of boxesOfTheLiving()) box.checked = event.target.checked;
    }
    picked.clear();
    for (const box of rows.querySelectorAll('input[name="id"]:checked')) picked.add(box.value);
    showPicked();
  });

  // Those are done with; what was selected meanwhile is not.
  document.addEventListener("acted", ({ detail: ids }) => {
    for (const id of ids) picked.delete(id);
    for (const box of rows.querySelectorAll('input[name="id"]:checked')) box.checked = picked.has(box.value);
    showPicked();
  });

  // ---- keys: only while a row has the focus, so that they cannot surprise anybody ----
  const KEYS = { p: "pause", r: "resume", k: "kill" };
  rows.addEventListener("keydown", (event) => {
    const row = event.target.closest("tr[data-id]");
    if (!row || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    if (step) row[step]?.querySelector(".name a").focus();
    else if (event.key === "x") row.querySelector('input[name="id"]')?.click();
    else if (KEYS[event.key]) {
      const button = row.querySelector(`.act.${KEYS[event.key]}`);
      if (button?.checkVisibility({ visibilityProperty: true })) button.click();
      else toast("note", t("key_not_offered", { action: t(`key_${KEYS[event.key]}`), name: row.dataset.name }));
    } else return;
    event.preventDefault();
  });

  // ---- a swap keeps what a person was doing ----
  let focused = null;
  rows.addEventListener("htmx:beforeSwap", (event) => {
    if (isPressed()) {
      event.detail.shouldSwap = false;
      reload();
      return;
    }
    const element = rows.contains(document.activeElement) ? document.activeElement : null;
    const id = element?.closest("tr[data-id]")?.dataset.id;
    focused = id
      ? { id, act: element.dataset.act, box: element.name === "id" }
      : element?.dataset.sort
        ? { sort: element.closest("th").className }
        : null;
  });
  rows.addEventListener("htmx:afterSwap", () => {
    for (const box of rows.querySelectorAll('input[name="id"]')) box.checked = picked.has(box.value);
    showPicked();
    fillAll();
    patchAll(null);
    if (!focused) return;
    const row = focused.id && rows.querySelector(`tr[data-id="${CSS.escape(focused.id)}"]`);
    const target = focused.sort
      ? rows.querySelector(`th.${focused.sort} button`)
      : row?.querySelector(focused.box ? 'input[name="id"]' : focused.act ? `.act.${focused.act}` : ".name a");
    target?.focus();
  });
}
