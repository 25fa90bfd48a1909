// The last lines of an output, fetched when they are to be seen. As text, never as markup: programs wrote them.
import { t } from "./format.js";

async function fill(details) {
  const { lines } = details.dataset;
  if (!details.open || !lines) return;
  delete details.dataset.lines;
  const answer = await fetch(lines);
  details.lastElementChild.textContent = (await answer.text()).trimEnd() || t("no_output");
}

function watch() {
  for (const details of document.querySelectorAll("details[data-lines]:not([data-watched])")) {
    details.dataset.watched = "";
    details.addEventListener("toggle", () => fill(details));
    fill(details);
  }
}
document.addEventListener("htmx:oobAfterSwap", watch);
watch();
