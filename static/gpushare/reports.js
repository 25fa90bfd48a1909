// Bars beside the figures (widths may not stand in the page itself: its policy forbids inline style), and printing.
for (const bar of document.querySelectorAll("[data-share]")) bar.style.width = `${bar.dataset.share}%`;
for (const line of document.querySelectorAll("[data-at]")) line.style.left = `${line.dataset.at}%`;
document.getElementById("print")?.addEventListener("click", () => print());
