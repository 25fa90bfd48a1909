// People and groups: what cannot be taken back is asked first, in the page's own dialog; a made-up password is copied.
import { ask } from "../parts/actions.js";
import { t } from "../parts/format.js";
import "../parts/copy.js";

document.addEventListener("submit", async (event) => {
  const button = event.submitter;
  const text = button?.dataset.ask;
  if (!text || button.dataset.asked) return;
  event.preventDefault();
  const answer = await ask({ title: t("sure"), text, yes: button.dataset.yes, danger: true, note: false });
  if (answer === null) return;
  button.dataset.asked = "yes";
  event.target.requestSubmit(button);
});
