// One's own page: which colours this browser shows, and the keys of its tokens.
import "../parts/confirm.js";
import "../parts/copy.js";
import { kept } from "../parts/kept.js";

const themes = document.getElementById("themes");

function showChosen() {
  for (const choice of themes.elements) choice.checked = choice.value === (kept("theme") ?? "");
}

themes.addEventListener("change", ({ target }) => {
  kept("theme", target.value || null);
  if (target.value) document.documentElement.dataset.theme = target.value;
  else delete document.documentElement.dataset.theme;
  dispatchEvent(new Event("theme"));
});
for (const changed of ["theme", "storage"]) addEventListener(changed, showChosen);
showChosen();

// A new list of tokens takes the place of the old one: what was pressed is gone, and its heading has the focus.
document.addEventListener("htmx:afterSwap", ({ target }) => {
  if (target.id === "tokens") (document.getElementById("key") ?? document.getElementById("tokens-title")).focus();
});
