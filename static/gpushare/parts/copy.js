// A button with data-copy-from copies the text of the element of that id: a key or a password that is shown once. One
// with data-copy-text copies that: a command for the host.
import { toast } from "./actions.js";
import { t } from "./format.js";

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy-from], [data-copy-text]");
  if (!button) return;
  const key = document.getElementById(button.dataset.copyFrom);
  const text = button.dataset.copyText ?? key.textContent;
  try {
    await navigator.clipboard.writeText(text);
    toast("good", key ? t("copied") : t("copied_text", { text }));
  } catch {
    // no clipboard without TLS: Ctrl-C does the rest
    if (key) getSelection().selectAllChildren(key);
    toast("warn", key ? t("copy_by_hand") : t("copy_this", { text }));
  }
});
