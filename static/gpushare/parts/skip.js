// A link to each panel at the very beginning of the page: seen once it has the focus, as "Skip to the content" is.
import { make, t } from "./format.js";

const links = [];
for (const [number, panel] of document.querySelectorAll("main section[aria-labelledby]").entries()) {
  const title = document.getElementById(panel.getAttribute("aria-labelledby"));
  if (!title) continue;
  panel.id ||= `panel-${number}`;
  panel.tabIndex = -1;
  links.push(make("a", { class: "skip", href: `#${panel.id}` }, t("skip_to", { panel: title.firstChild.data.trim() })));
}
const first = document.querySelector(".skip");
first?.after(...links);
/** What is hidden cannot be skipped to. Panels come and go with what the page is sent: looked at when links are used. */
function offer() {
  for (const link of links) link.hidden = !document.querySelector(link.hash).checkVisibility();
}
offer();
first?.addEventListener("focus", offer);
