// On every page: the connection, the banners, ages, answers to actions.
import { duration, now, t } from "./parts/format.js";
import { live } from "./parts/live.js";
import "./parts/actions.js";
import "./parts/skip.js";
import "./parts/notify.js";
import "./panels/table.js";

const byId = (id) => document.getElementById(id);

function tell(banner, text) {
  const element = byId(banner);
  if (element.textContent !== text) element.textContent = text;
  element.hidden = !text;
}

function showConnection() {
  const connection = byId("connection");
  const { node } = live.state;
  // What the server says is not live either while nobody measures.
  if (live.ever) {
    const state = !live.fresh ? "lost" : node.alive ? "live" : "away";
    connection.dataset.state = state;
    connection.firstElementChild.textContent = t(state);
  }
  document.body.classList.toggle("stale", live.ever && (!live.fresh || !node.alive));
  showAges();
}

function showBanners() {
  const { node } = live.state;
  tell("banner-scheduler", live.ever && !node.alive ? t("scheduler_silent") : "");
  tell("banner-engine", node.error ? t("engine_away", { error: node.error }) : "");
  byId("banner-simulated").hidden = !node.simulated;
}

/** Everything that grows older by itself, once a second. Writes only what reads differently. */
function showAges() {
  const lost = live.ever && !live.fresh;
  const age = Math.round((performance.now() - live.heard) / 1000);
  tell("banner-lost", lost ? t("connection_lost", { age: duration(age) }) : "");
  for (const element of document.querySelectorAll("[data-since]")) {
    const since = Number(element.dataset.since);
    const text = since ? duration(now() - since) : "";
    if (element.textContent !== text) element.textContent = text;
  }
}

live.addEventListener("connection", showConnection);
live.addEventListener("change", () => {
  showBanners();
  showConnection();
});
setInterval(showAges, 1000);
for (const swapped of ["htmx:afterSwap", "htmx:oobAfterSwap"]) document.addEventListener(swapped, showAges);
showAges();
// Only once every script of the page listens: the first snapshot comes at once, and comes once.
document.addEventListener("DOMContentLoaded", () => live.start(document.body.dataset.live));
