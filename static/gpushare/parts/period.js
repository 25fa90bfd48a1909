// The form of a time that is shown (#period): a choice shows it at once. A day is one where the reader is.
export const period = document.getElementById("period");

for (const element of period?.querySelectorAll("select") ?? [])
  element.addEventListener("change", () => period.submit());

export const dayOf = document.getElementById("day-of");
dayOf?.addEventListener("change", () => {
  if (!dayOf.value) return;
  const [year, month, day] = dayOf.value.split("-").map(Number);
  const { until, hours } = period.elements;
  until.disabled = false;
  until.value = String(new Date(year, month - 1, day + 1).getTime() / 1000);
  hours.value = "24";
  period.submit();
});
