// A button with data-copy-from copies the text of the element of that id: a key or a password that is shown once.
import { toast } from "./actions.js";
import { t } from "./format.js";

document.addEventListener("click", async (event) => {
  const from = event.target.closest("[data-copy-from]")?.dataset.copyFrom;
  if (!from) return;
  const key = document.getElementById(from);
  try {
    await navigator.clipboard.writeText(key.textContent);
    toast("good", t("copied"));
  } catch {
    getSelection().selectAllChildren(key); // no clipboard without TLS: Ctrl-C does the rest
    toast("warn", t("copy_by_hand"));
  }
});
