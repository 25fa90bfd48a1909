// Used of the fair share over time: a line for each person, and one at 1 for what was due.
import { axis, chart, colour, timeAxis } from "../panels/charts.js";
import { hue, make, mark } from "../parts/format.js";

const data = document.getElementById("curve-data");
if (data) {
  const { times, people } = JSON.parse(data.textContent);
  const line = (label, stroke, more = {}) => ({
    label,
    stroke,
    width: 2,
    spanGaps: false,
    points: { size: 5 },
    ...more,
  });
  const key = (index) => make("span", { class: "key used-key", "data-mark": mark(index) });
  chart(
    document.getElementById("curve"),
    240,
    () => ({
      cursor: { y: false },
      scales: { y: { range: (_, __, high) => [0, Math.max(2, (high ?? 0) * 1.05)] } },
      axes: [timeAxis(), { ...axis(), size: 44 }],
      series: [
        {},
        line("fair share", colour("--faint"), { dash: [6, 4], width: 1, points: { show: false } }),
        ...people.map(({ name }, index) => line(name, colour(hue(index)))),
      ],
    }),
    [times, times.map(() => 1), ...people.map(({ values }) => values)],
  );
  document
    .getElementById("curve-legend")
    .append(...people.map(({ name }, index) => make("span", { class: "nowrap" }, key(index), name)));
}
