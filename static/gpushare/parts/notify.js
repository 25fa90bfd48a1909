// What calls out while nobody looks: the tab's title counts what needs this person, and, on wish, the desktop tells it.
//
// The wish is this computer's alone (localStorage); permission is asked for on a click and never otherwise. Several tabs
// tell the same thing under one tag, so the desktop shows it once.
import { t } from "./format.js";
import { kept } from "./kept.js";
import { live } from "./live.js";

const { me, role, base } = document.body.dataset;
const title = document.title;
const MANY = 5; // notifications at once; a storm is shown in the title
const SOON = [2000, 8000]; // ms after one of my containers changed: by then the server has looked
let known = null; // what needed me when I last looked; null: not yet looked
let timers = [];

const can = () => "Notification" in window && isSecureContext;
/** The permission comes last: each look at it asks another process, and everything waits for the answer. */
const wanted = () => kept("notify") === "on" && can() && Notification.permission === "granted";

/** What this person is to look at: what is theirs, and everything for those who steer everything. */
function mine() {
  const all = role === "operator" || role === "admin";
  return Object.entries(live.state.attention).filter(([, item]) => all || item.person === me);
}

function show(message, tag) {
  const shown = new Notification("gpushare", { body: message, tag });
  shown.onclick = () => {
    focus();
    shown.close();
  };
}

function look() {
  const items = mine();
  document.title = items.length ? `(${items.length}) ${title}` : title;
  const fresh = known ? items.filter(([key]) => !known.has(key)) : [];
  if (fresh.length && wanted()) for (const [key, item] of fresh.slice(0, MANY)) show(item.message, key);
  known = new Set(items.map(([key]) => key));
}

/** What happened to my containers since this computer last heard of any. */
async function fetchNotices() {
  if (!wanted()) return;
  const answer = await fetch(`${base}api/v1/me/notices/?page=last&after=${Number(kept("notify-seen") ?? 0)}`);
  if (!answer.ok) return;
  const { results } = await answer.json();
  if (results.length === 0) return;
  const seen = Number(kept("notify-seen") ?? 0); // another tab may have been quicker
  for (const notice of results.filter(({ id }) => id > seen).slice(-MANY)) show(notice.message, `notice-${notice.id}`);
  kept("notify-seen", String(Math.max(seen, results.at(-1).id)));
}

live.addEventListener("change", ({ detail: { changes } }) => {
  look();
  const touched = Object.keys(changes.containers ?? {});
  if (!touched.some((id) => live.state.containers[id]?.owner === me) || !wanted()) return;
  for (const timer of timers) clearTimeout(timer);
  timers = SOON.map((soon) => setTimeout(() => fetchNotices().catch(() => {}), soon));
});

// ---- the button, on the page of notifications ----
const button = document.getElementById("notify-here");

function showButton() {
  const denied = can() && Notification.permission === "denied";
  button.hidden = !can() || denied;
  button.textContent = t(wanted() ? "notify_on" : "notify_off");
  button.setAttribute("aria-pressed", String(wanted()));
  const why = document.getElementById("notify-why");
  why.textContent = can() ? (denied ? t("notify_denied") : "") : t("notify_cannot");
}

async function toggle() {
  if (wanted()) kept("notify", null);
  else if ((await Notification.requestPermission()) === "granted") {
    const answer = await fetch(`${base}api/v1/me/notices/?page=last&page_size=1`);
    if (answer.ok) kept("notify-seen", String((await answer.json()).results.at(-1)?.id ?? 0)); // the past is no news
    kept("notify", "on");
  }
  showButton();
}

if (button) {
  button.addEventListener("click", toggle);
  showButton();
}
