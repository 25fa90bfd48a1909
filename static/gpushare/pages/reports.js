// Bars beside the figures (widths may not stand in the page itself: its policy forbids inline style), printing, and the
// states of the containers listed, which decide what can be done.
import { live } from "../parts/live.js";

for (const bar of document.querySelectorAll("[data-share]")) bar.style.width = `${bar.dataset.share}%`;
for (const line of document.querySelectorAll("[data-at]")) line.style.left = `${line.dataset.at}%`;
document.getElementById("print")?.addEventListener("click", () => print());
live.addEventListener("change", ({ detail: { changes } }) => {
  for (const row of document.querySelectorAll("tr[data-id]")) {
    const state = changes.containers?.[row.dataset.id]?.state;
    if (state) row.dataset.state = state;
  }
});
