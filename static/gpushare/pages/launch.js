// The launch form: where it would stand on each GPU now, a quota from measured peaks, and the same launch as a command.
import "../parts/confirm.js";
import { bytesOf, make, mark, size, t } from "../parts/format.js";
import { live } from "../parts/live.js";
import { atRest } from "../parts/press.js";

const form = document.getElementById("launch");
const value = (name) => form.elements[name]?.value.trim() ?? "";
const AGAIN = 1000; // after so long a scheduler that had no time for an answer is asked once more

// ---- where it would stand ----
function preview() {
  const typed = value("gpu_memory");
  const quota = typed ? bytesOf(typed) : Number(form.dataset.quota);
  for (const card of form.querySelectorAll(".preview")) {
    const gpu = live.state.gpus[card.dataset.gpu];
    if (!gpu) continue;
    const held = Object.values(live.state.containers)
      .filter((c) => card.dataset.gpu in c.gpus && !c.finished_at)
      .sort((a, b) => a.created_at - b.created_at);
    const used = held.reduce((sum, c) => sum + c.gpus[card.dataset.gpu].used, 0);
    const waiting = held.filter((c) => c.gpus[card.dataset.gpu].waiting > 0).length;
    const verdict = card.querySelector(".verdict");
    const out = Boolean(gpu.drained_at);
    card.querySelector("input").disabled = out;
    const fits = quota !== null && !out && quota <= gpu.free + gpu.idle && waiting === 0;
    const free = t(gpu.idle ? "preview_idle" : "preview_free", { free: size(gpu.free), idle: size(gpu.idle) });
    verdict.textContent = out
      ? t("preview_drained", { reason: gpu.drain_reason })
      : quota === null
        ? ""
        : quota > gpu.most
          ? t("preview_never", { most: size(gpu.most) })
          : fits
            ? t("preview_fits", { free })
            : waiting
              ? t("preview_behind", { count: waiting, free })
              : t("preview_waits", { free });
    verdict.dataset.fits = String(fits);
    const bar = card.querySelector(".bar");
    bar.replaceChildren();
    const part = (bytes, kind, colour) => {
      const element = make("span", { class: kind, ...(colour !== undefined && { "data-mark": mark(colour) }) });
      element.style.width = `${Math.max(0, (100 * bytes) / gpu.total)}%`;
      bar.append(element);
    };
    for (const c of held) part(c.gpus[card.dataset.gpu].used, "used", c.colour);
    const lost = gpu.most - gpu.capacity; // to foreign memory: on a capped card not all of it
    if (lost > 0) part(lost, "foreign");
    if (quota && !out) part(Math.min(quota, Math.max(0, gpu.capacity - used)), `new ${fits ? "" : "short"}`);
  }
}
let drawn = false;
live.addEventListener("change", () => {
  if (drawn) return;
  drawn = true;
  requestAnimationFrame(async () => {
    await atRest();
    drawn = false;
    preview();
  });
});

// ---- what the server knows better: a quota from measured peaks, and the scheduler's own forecast ----
let later = null;
let asking = new AbortController();
function askLater() {
  clearTimeout(later);
  later = setTimeout(() => {
    asking.abort();
    asking = new AbortController();
    suggest(asking.signal);
    forecast(asking.signal);
  }, 350);
}
/** {} if nothing is known; null if something else was asked for meanwhile: a late answer is to another question. */
const ask = (address, signal, options) =>
  fetch(address, { ...options, signal })
    .then((answer) => answer.json())
    .catch(() => ({}))
    .then((foreseen) => atRest().then(() => (signal.aborted ? null : foreseen)));
async function suggest(signal) {
  const place = document.getElementById("suggestion");
  const address = new URL(form.dataset.suggestion, location.href);
  address.searchParams.set("image", value("image"));
  address.searchParams.set("command", value("command"));
  const found = await ask(address, signal);
  if (found) place.hidden = !found.size;
  if (!found?.size) return;
  place.firstElementChild.textContent = found.text;
  const button = place.querySelector("button");
  button.textContent = t("take_suggestion", { size: found.size });
  button.onclick = () => {
    form.elements.gpu_memory.value = found.size;
    preview();
    askLater();
  };
}
async function forecast(signal) {
  const place = document.getElementById("forecast");
  const asked = new FormData();
  for (const name of ["gpu_memory", "gpu_count", "gpus", "node", "constraints", "csrfmiddlewaretoken"]) {
    for (const one of new FormData(form).getAll(name)) asked.append(name, one);
  }
  const foreseen = await ask(form.dataset.forecast, signal, { method: "POST", body: asked });
  if (!foreseen) return;
  place.textContent = foreseen.text ?? "";
  place.classList.toggle("error", Boolean(foreseen.bad));
  if (foreseen.again) setTimeout(() => signal.aborted || forecast(signal), AGAIN);
}
/** What was wrong with a field was wrong with what stood there. */
function forgetError(field) {
  if (field.getAttribute("aria-invalid") !== "true") return;
  field.removeAttribute("aria-invalid");
  field.closest(".field")?.classList.remove("wrong");
  const hint = document.getElementById(field.getAttribute("aria-describedby"));
  hint.removeAttribute("role");
  hint.className = "hint";
  hint.textContent = hint.dataset.hint;
}
form.addEventListener("input", ({ target }) => {
  forgetError(target);
  preview();
  askLater();
});
askLater();
document.getElementById("cards").addEventListener("htmx:afterSwap", () => {
  preview(); // another node's
  askLater();
});
document.getElementById("recent")?.addEventListener("change", (event) => {
  location.href = event.target.value || location.pathname;
});

// ---- the same as a command ----
const quote = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

async function asCommand(kind) {
  const answer = await fetch(form.dataset.body, { method: "POST", body: new FormData(form) });
  const body = await answer.json();
  if (!answer.ok) return body.error.message;
  if (kind === "cli") return body.cli;
  return [
    `curl -X POST ${location.origin}/api/v1/containers/`,
    '-H "Authorization: Token $GPUSHARE_TOKEN"',
    "-H 'Content-Type: application/json'",
    `-d ${quote(JSON.stringify(body.body))}`,
  ].join(" \\\n  ");
}

form.addEventListener("click", async (event) => {
  const kind = event.target.dataset?.copy;
  if (!kind) return;
  const text = await asCommand(kind);
  const place = document.getElementById("copied");
  place.textContent = text;
  place.hidden = false;
  try {
    await navigator.clipboard.writeText(text);
    event.target.textContent = t("copied");
  } catch {
    place.focus();
    getSelection().selectAllChildren(place);
  } // no clipboard over plain HTTP: selected, ready to copy
});
