// One's own page: which colours this browser shows, and the keys of its tokens.
import "../parts/confirm.js";
import "../parts/copy.js";

const themes = document.getElementById("themes");

function stored() {
  try {
    return localStorage.getItem("theme") ?? "";
  } catch {
    return "";
  }
}

function showChosen() {
  for (const choice of themes.elements) choice.checked = choice.value === stored();
}

themes.addEventListener("change", ({ target }) => {
  try {
    if (target.value) localStorage.setItem("theme", target.value);
    else localStorage.removeItem("theme");
  } catch {
    /* no storage: for this page only */
  }
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
