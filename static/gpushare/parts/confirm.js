// hx-confirm asks in the page's own dialog: the sentence is the question, data-yes the word on the button.
import { ask } from "./actions.js";
import { t } from "./format.js";

document.addEventListener("htmx:confirm", async (event) => {
  if (!event.detail.question) return;
  event.preventDefault();
  const yes = event.detail.elt.dataset.yes ?? t("do_it");
  const answer = await ask({ title: t("sure"), text: event.detail.question, yes, danger: true, note: false });
  if (answer !== null) event.detail.issueRequest(true);
});
