// A terminal: a container's own, or a shell that is opened in it.

import { Terminal } from "../../vendor/xterm-core.js";
import { FitAddon } from "../../vendor/xterm-fit.js";
import { showState } from "../parts/computing.js";
import { t } from "../parts/format.js";
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
  screenReaderMode: stored() === "yes",
});
const fit = new FitAddon();
terminal.loadAddon(fit);
terminal.open(place);
terminal.textarea.setAttribute("aria-label", t("terminal_of", { name }));
terminal.textarea.setAttribute("aria-describedby", "console-help");

let line = null;

function open() {
  const url = new URL(socket, location.href);
  url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  tell("connecting", t("console_connecting"));
  fitted();
  const { rows, cols } = terminal;
  const opened = new Line(url, kind === "shell" ? { tty: true, interactive: true, rows, columns: cols } : undefined);
  line = opened;
  opened.addEventListener("open", () => {
    if (kind === "console") opened.resize(terminal.rows, terminal.cols);
    tell("open", t(kind === "shell" ? "shell_open" : "console_open", { name }));
  });
  opened.addEventListener("output", ({ detail: { data, taken } }) => terminal.write(data, taken));
  opened.addEventListener("end", ({ detail }) => {
    if (line === opened) ended(detail);
  });
}

function ended({ code, refusal, whole }) {
  line = null;
  if (refusal) tell("refused", refusal.message);
  else if (code !== null) tell("ended", t("shell_ended", { code }));
  else tell(whole ? "ended" : "cut", t(whole ? "console_ended" : "console_cut"));
}

function tell(phase, text) {
  article.dataset.line = phase;
  status.textContent = text;
  again.hidden = phase === "connecting" || phase === "open";
}

// ---- keys ----
const bytes = new TextEncoder();
terminal.onData((text) => line?.type(bytes.encode(text)));
terminal.onBinary((text) => line?.type(Uint8Array.from(text, (sign) => sign.charCodeAt(0))));
terminal.attachCustomKeyEventHandler((event) => {
  if (event.key !== "F6" || !event.shiftKey) return true;
  event.preventDefault(); // Tab is the program's: this is how the keyboard leaves it
  if (event.type === "keydown") leave.focus();
  return false;
});
again.addEventListener("click", () => {
  terminal.reset();
  open();
  terminal.focus();
});
reading.checked = terminal.options.screenReaderMode;
reading.addEventListener("change", () => {
  terminal.options.screenReaderMode = reading.checked;
  try {
    localStorage.setItem("terminal-read-out", reading.checked ? "yes" : "no");
  } catch {
    /* no storage: for this page only */
  }
});
function stored() {
  try {
    return localStorage.getItem("terminal-read-out");
  } catch {
    return null;
  }
}

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
