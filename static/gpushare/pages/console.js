// A terminal: a container's own, or a shell that is opened in it.

import { Terminal } from "../../vendor/xterm-core.js";
import { FitAddon } from "../../vendor/xterm-fit.js";
import { showState } from "../panels/computing.js";
import { t } from "../parts/format.js";
import { kept } from "../parts/kept.js";
import { Line } from "../parts/line.js";
import { live } from "../parts/live.js";
import { sheetsForStyles } from "../parts/sheets.js";

const article = document.getElementById("console");
const { id, kind, name, socket } = article.dataset;
const place = document.getElementById("terminal");
const status = document.getElementById("console-status");
const again = document.getElementById("console-again");
const leave = document.getElementById("console-leave");
const reading = document.getElementById("console-reading");

sheetsForStyles();
const terminal = new Terminal({
  fontFamily: "ui-monospace, 'DejaVu Sans Mono', monospace",
  fontSize: 14,
  lineHeight: 1.2, // at 1 a row cuts off what hangs lowest: the underscore was not to be seen
  scrollback: 5000, // lines: what a program prints without end is not kept without end
  minimumContrastRatio: 4.5,
  disableStdin: article.dataset.keyboard !== "yes",
  screenReaderMode: kept("terminal-read-out") === "yes",
});
const fit = new FitAddon();
terminal.loadAddon(fit);
terminal.open(place);
terminal.textarea.setAttribute("aria-label", t("terminal_of", { name }));
terminal.textarea.setAttribute("aria-describedby", "console-help");

const RETRY = [250, 500, 1000, 2000, 4000]; // ms
let line = null;
let wasOpen = false;
let away = 0; // attempts since the connection broke; the container's program goes on
const typed = []; // meanwhile

function open() {
  const url = new URL(socket, location.href);
  url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  if (!away) tell("connecting", t("console_connecting"));
  fitted();
  const { rows, cols } = terminal;
  const opened = new Line(url, kind === "shell" ? { tty: true, interactive: true, rows, columns: cols } : undefined);
  line = opened;
  opened.addEventListener("open", () => {
    if (away) opened.resize(terminal.rows + 1, terminal.cols); // only of a change a program hears, and draws anew
    if (kind === "console") opened.resize(terminal.rows, terminal.cols);
    for (const data of typed.splice(0)) opened.type(data);
    away = 0;
    wasOpen = true;
    tell("open", t(kind === "shell" ? "shell_open" : "console_open", { name }));
  });
  opened.addEventListener("output", ({ detail: { data, taken } }) => terminal.write(data, taken));
  opened.addEventListener("end", ({ detail }) => {
    if (line === opened) ended(detail);
  });
}

function ended({ code, refusal, whole }) {
  line = null;
  const broke = !whole && (!refusal || refusal.status >= 500 || refusal.status === 429);
  if (kind === "console" && wasOpen && broke) {
    tell("away", t("console_away", { name }));
    setTimeout(open, RETRY[Math.min(away++, RETRY.length - 1)]);
    return;
  }
  away = 0;
  typed.length = 0;
  if (refusal) tell("refused", refusal.message);
  else if (code !== null) tell("ended", t("shell_ended", { code }));
  else tell(whole ? "ended" : "cut", t(whole ? "console_ended" : "console_cut"));
}

function tell(phase, text) {
  article.dataset.line = phase;
  status.textContent = text;
  again.hidden = ["connecting", "open", "away"].includes(phase);
}

// ---- keys ----
const bytes = new TextEncoder();
function type(data) {
  if (away) typed.push(data);
  else line?.type(data);
}
terminal.onData((text) => type(bytes.encode(text)));
terminal.onBinary((text) => type(Uint8Array.from(text, (sign) => sign.charCodeAt(0))));
terminal.attachCustomKeyEventHandler((event) => {
  if (event.key !== "F6" || !event.shiftKey) return true;
  event.preventDefault(); // Tab is the program's: this is how the keyboard leaves it
  if (event.type === "keydown") leave.focus();
  return false;
});
again.addEventListener("click", () => {
  wasOpen = false;
  terminal.reset();
  open();
  terminal.focus();
});
reading.checked = terminal.options.screenReaderMode;
reading.addEventListener("change", () => {
  terminal.options.screenReaderMode = reading.checked;
  kept("terminal-read-out", reading.checked ? "yes" : "no");
});

// ---- size ----
function fitted() {
  try {
    fit.fit();
  } catch {
    /* it is not shown */
  }
}
let soon = 0;
new ResizeObserver(() => {
  clearTimeout(soon);
  soon = setTimeout(fitted, 50); // not for each pixel that somebody drags
}).observe(place);
terminal.onResize(({ rows, cols }) => line?.resize(rows, cols));

// ---- colours ----
function dress() {
  const probe = document.createElement("span");
  article.append(probe);
  const resolved = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  terminal.options.theme = {
    background: resolved("--terminal-ground"),
    foreground: resolved("--terminal-text"),
    cursor: resolved("--terminal-text"),
    cursorAccent: resolved("--terminal-ground"),
    selectionBackground: resolved("--terminal-selected"),
    selectionForeground: resolved("--terminal-text"),
    red: resolved("--bad"),
    green: resolved("--good"),
    yellow: resolved("--warn"),
    blue: resolved("--accent"),
    magenta: resolved("--swap"),
  };
  probe.remove();
}
dress();
addEventListener("theme", dress);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", dress);

// ---- the container ----
live.addEventListener("change", ({ detail: { changes } }) => {
  if (changes.containers?.[id])
    showState(article, article.querySelector('[data-field="state"]'), live.state.containers[id]);
});
addEventListener("pagehide", () => line?.close());

open();
terminal.focus();
