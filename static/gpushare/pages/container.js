// The page of one container: figures as they change, the chart of what it holds, its output as it comes.
import "../parts/copy.js";
import { chart, colour, sizeAxis, timeAxis } from "../panels/charts.js";
import { countComputed, drawComputed, showComputing } from "../panels/computed.js";
import { showState } from "../panels/computing.js";
import "../parts/lastlines.js";
import { drawHost, showHost } from "../panels/host.js";
import { duration, hue, local, make, now, size, stamp, t } from "../parts/format.js";
import { put } from "../parts/keyed.js";
import { live } from "../parts/live.js";
import { atRest, isPressed } from "../parts/press.js";

const article = document.getElementById("container");
const id = article.dataset.id;
const SAMPLED = 3000; // ms: once a second on an idle host
const field = (name, within = article) => within.querySelector(`[data-field="${name}"]`);

// ---- figures ----
function show(container) {
  if (article.dataset.state !== container.state) renew();
  renewHeld(container);
  showState(article, field("state"), container);
  showComputing(container);
  showHost(field("host"), container);
  for (const name of ["reason", "not_restored", "cannot_move"]) {
    put(field(name), container[name]);
    field(name).hidden = !container[name];
  }
  showWaiting(container);
  if (container.finished_at) {
    const code = container.exit_code === null ? "" : t("exit_code", { code: container.exit_code });
    const took = container.started_at === null ? null : container.finished_at - container.started_at;
    const ran = took === null ? "" : t("ran_for", { time: duration(took) });
    put(field("ended"), t("ended_at", { time: stamp(container.finished_at), ran, code }));
  }
  for (const [uuid, claim] of Object.entries(container.gpus)) {
    const row = article.querySelector(`tr[data-gpu="${CSS.escape(uuid)}"]`);
    if (!row) {
      location.reload();
      return;
    } // placed on a GPU just now
    for (const name of ["used", "quota", "peak", "granted", "overhead", "unexplained"])
      put(field(name, row), size(claim[name]));
    put(field("utilisation", row), claim.utilisation === null ? "–" : t("of_time", { part: claim.utilisation }));
  }
}

function showWaiting(container) {
  if (!container) return; // not reported yet: what the server wrote stands
  const since = container.suspended_since;
  const out = container.swapped ? t("swapped", { size: size(container.swapped) }) : "";
  put(
    field("waiting"),
    since
      ? t("waiting", {
          place: container.queue_position ?? "?",
          time: duration(now() - since),
          reason: local(container.queue_reason),
        })
      : out,
  );
}

let renewing = null;
/** Life, processes and events are written by the server: asked for again when the state or what it holds has changed. */
function renew() {
  if (renewing) return;
  renewing = setTimeout(() => {
    renewing = null;
    htmx.trigger("#renew", "renew");
  }, 600);
}

let overhead = article.dataset.overhead; // of its contexts, in bytes; empty while it holds nothing
/** Its first memory, its last, or another context: other processes have it, which are sampled some time after. */
function renewHeld({ gpus }) {
  const claims = Object.values(gpus);
  const holds = claims.some(({ used }) => used > 0);
  const total = holds ? String(claims.reduce((sum, claim) => sum + claim.overhead, 0)) : "";
  if (total === overhead) return;
  overhead = total;
  renew();
  setTimeout(renew, SAMPLED);
}

document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.target.id !== "renew" || !isPressed()) return;
  event.detail.shouldSwap = false;
  renew();
});

live.addEventListener("change", ({ detail: { changes } }) => {
  if (changes.containers?.[id]) show(live.state.containers[id]);
});
setInterval(() => showWaiting(live.state.containers[id]), 1000);

// ---- VRAM over time ----
const ENDED = new Set(["exited", "failed", "killed"]);
const held = await (await fetch(article.dataset.history)).json();
await atRest();
const columns = [held.times, held.used, held.granted];
const shade = hue(article.dataset.mark);
const place = document.getElementById("held");
const quota = () =>
  Object.values(live.state.containers[id]?.gpus ?? {}).reduce((sum, claim) => sum + claim.quota, 0) || held.quota || 1;
const plot = chart(
  place,
  180,
  () => ({
    cursor: { y: false },
    scales: {
      y: { range: (_, __, high) => [0, Math.max(quota() * 1.05, high ?? 0)] },
    },
    axes: [timeAxis(), sizeAxis(quota)],
    series: [
      {},
      { stroke: colour(shade), fill: colour(shade, 0.35), width: 1.5, points: { show: false } },
      { stroke: colour("--faint"), width: 1, dash: [4, 3], points: { show: false } },
    ],
    hooks: {
      draw: [
        ({ ctx, bbox, valToPos }) => {
          const y = valToPos(quota(), "y", true);
          ctx.save(); // uPlot remembers what it has set, and sets it no second time
          ctx.strokeStyle = colour("--bad");
          ctx.setLineDash([]);
          ctx.beginPath();
          ctx.moveTo(bbox.left, y);
          ctx.lineTo(bbox.left + bbox.width, y);
          ctx.stroke();
          ctx.restore();
        },
      ],
    },
  }),
  columns,
);
if (!held.times.length && ENDED.has(article.dataset.state)) {
  place.nextElementSibling.remove(); // what the colours mean
  place.replaceWith(make("p", { class: "empty" }, t("no_samples")));
}
setInterval(() => {
  const container = live.state.containers[id];
  if (!live.fresh || !container || container.finished_at) return;
  const claims = Object.values(container.gpus);
  columns[0].push(Math.round(now()));
  columns[1].push(claims.reduce((sum, claim) => sum + claim.used, 0));
  columns[2].push(claims.reduce((sum, claim) => sum + claim.granted, 0));
  if (columns[0].length > 1200) for (const column of columns) column.shift();
  plot.set(columns);
}, 1000);

drawComputed(held, shade, () => live.fresh && live.state.containers[id]);
countComputed(id, () => live.fresh && live.state.containers[id]);

drawHost(held, shade, () => live.fresh && live.state.containers[id]);

// ---- its life ----
function showLife() {
  const parts = [...article.querySelectorAll(".life .stretch")];
  const whole = parts.reduce((sum, part) => sum + Number(part.dataset.seconds), 0) || 1;
  for (const part of parts) part.style.width = `${(100 * part.dataset.seconds) / whole}%`;
}
showLife();
document.addEventListener("htmx:oobAfterSwap", showLife);

// ---- output ----
const log = document.getElementById("log");
const KEEP = 400_000; // characters on screen: a log of 100 MB must not become a page of 100 MB

async function follow() {
  const box = document.getElementById("log-follow");
  const atEnd = () => log.scrollHeight - log.scrollTop - log.clientHeight < 24;
  let byScript = false;
  log.addEventListener("scroll", () => {
    if (!byScript) box.checked = atEnd();
    byScript = false;
  });
  box.addEventListener("change", () => {
    if (box.checked) log.scrollTop = log.scrollHeight;
  });
  const response = await fetch(log.dataset.url);
  if (!response.ok) {
    log.textContent = await response.text();
    return;
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    log.append(value);
    while (log.textContent.length > KEEP && log.firstChild !== log.lastChild) log.firstChild.remove();
    if (box.checked) {
      byScript = true;
      log.scrollTop = log.scrollHeight;
    }
  }
  if (!log.textContent) {
    log.textContent = t("no_output");
    log.classList.add("faint");
  }
}
if (log) follow();
