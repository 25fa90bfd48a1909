// The replay: a day or another length of time of one GPU, stacked by container, and a slider through it.
import { chart, colour, patterned, sizeAxis, stacked, timeAxis } from "../panels/charts.js";
import { showBand } from "../panels/computing.js";
import { showMarks } from "../panels/marks.js";
import { OTHERS, offer, only } from "../panels/namespaces.js";
import { pageOf } from "../panels/waiting.js";
import { make, mark, size, stamp, t } from "../parts/format.js";
import { keyed, put } from "../parts/keyed.js";
import { dayOf, period } from "../parts/period.js";
import { atRest } from "../parts/press.js";

const SUMS = ["free", OTHERS]; // what is shown beside containers
const THUMB = 16; // pixels; style/history.css gives the slider's thumb this width
const replay = document.getElementById("replay");
/** Shows the next shorter (1) or longer (-1) time, with `at` (seconds) in its middle. */
function zoom(step, at) {
  const { hours, until } = period.elements;
  const wanted = hours.options[hours.selectedIndex + step];
  if (!wanted) return;
  const end = at + Number(wanted.value) * 1800;
  until.value = end < Date.now() / 1000 ? String(Math.round(end)) : "";
  hours.value = wanted.value;
  period.submit();
}

async function begin() {
  const day = await (await fetch(replay.dataset.day)).json();
  await atRest();
  const { namespace } = period.elements;
  offer(namespace, [...day.containers, ...day.marks]);
  day.containers = only(namespace.value, day.containers);
  day.marks = day.marks.filter((each) => !namespace.value || each.namespace === namespace.value);
  document.getElementById("no-history").hidden = day.containers.length > 0;
  const sums = stacked(day.containers.map(({ values }) => values));
  const layers = [...sums].reverse(); // drawn from the highest sum down, so that each covers what lies beneath it
  const edge = layers.length > 40 ? 0 : 0.5; // many thin layers would be all edges
  const marks = day.containers.map(({ id, colour: number }) => (id === OTHERS ? null : mark(number))).reverse();
  const [first, last] = [day.times[0], day.times.at(-1)];
  dayOf.value = new Date((last - 1 - new Date(last * 1000).getTimezoneOffset() * 60) * 1000).toISOString().slice(0, 10);
  const slider = document.getElementById("slider");
  const waits = document.getElementById("waits");
  slider.max = String(day.times.length - 1);
  slider.value = slider.max;
  let cursor = day.times.length - 1;
  const line = make("i", { class: "now-line" }); // over the chart: 200 layers are not drawn anew for each step of it
  const plot = chart(
    document.getElementById("day"),
    260,
    (
      panel = colour("--panel"),
      rest = colour("--faint", 0.35),
      shades = [...Array(10).keys()].map((number) => colour(`--c${number}`)),
    ) => ({
      scales: { y: { range: [0, day.total] } },
      axes: [timeAxis(), sizeAxis()],
      series: [
        {},
        ...layers.map((_, index) => ({
          fill: marks[index] === null ? rest : patterned(shades[marks[index] % 10], Math.floor(marks[index] / 10)),
          stroke: panel,
          width: edge,
          points: { show: false },
        })),
      ],
      hooks: {
        ready: [({ over }) => over.append(line)],
        draw: [
          ({ bbox }) => {
            // The slider's thumb stands under the line that it moves.
            slider.style.marginLeft = `${bbox.left / devicePixelRatio - THUMB / 2}px`;
            slider.style.width = `${bbox.width / devicePixelRatio + THUMB}px`;
            waits.style.marginLeft = `${bbox.left / devicePixelRatio}px`;
            waits.style.width = `${bbox.width / devicePixelRatio}px`;
          },
        ],
      },
    }),
    [day.times, ...layers],
  );

  function show(index, exact = null) {
    cursor = index;
    const at = exact?.at ?? day.times[index];
    const time = stamp(at).slice(0, exact ? 19 : 16);
    put(document.getElementById("at"), time);
    slider.setAttribute("aria-valuetext", time);
    const there = exact?.containers ?? day.containers.map((c) => ({ ...c, used: c.values[index] }));
    const held = only(namespace.value, there).filter((c) => c.used > 0 || c.suspended || c.swapped);
    const total = held.reduce((sum, c) => sum + c.used, 0);
    keyed(
      document.getElementById("then-bar"),
      held,
      ({ id }) => id,
      () => make("span", { class: "used" }),
      (part, c) => {
        part.style.width = `${(100 * c.used) / day.total}%`;
        showMark(part, c);
        part.title = t("bar_used", { name: c.name, size: size(c.used) });
      },
    );
    document
      .getElementById("then-bar")
      .setAttribute(
        "aria-label",
        held.map((c) => t("bar_used", { name: c.name, size: size(c.used) })).join(", ") || t("bar_free"),
      );
    const computed = held.map((c) => ({ ...c, part: c.had ?? null }));
    showBand(document.getElementById("then-band"), computed, "computed_then");
    const entries = [...held, { id: "free", name: t("free"), used: Math.max(0, day.total - total) }];
    keyed(
      document.getElementById("then"),
      entries,
      ({ id }) => id,
      ({ id }) =>
        make(
          "li",
          {},
          make("span", { class: "mark" }),
          SUMS.includes(id) ? make("span") : make("a", { href: pageOf(id) }),
          make("span", { class: "faint" }),
          make("span", { class: "faint aside" }),
        ),
      (item, c) => {
        showMark(item.firstElementChild, c);
        item.firstElementChild.classList.toggle("swapped", Boolean(c.swapped) && !c.used);
        put(item.children[1], c.name);
        if (!SUMS.includes(c.id)) item.children[1].title = c.name;
        put(item.children[2], c.swapped && !c.used ? t("swapped", { size: size(c.swapped) }) : size(c.used));
        put(item.children[3], aside(c).filter(Boolean).join(" · "));
      },
    );
    line.style.left = `${(100 * index) / Math.max(1, day.times.length - 1)}%`;
  }

  let asked = 0,
    timer = null;
  function move(index) {
    show(index);
    clearTimeout(timer);
    timer = setTimeout(async () => {
      // the day is coarse; at rest, the very second is asked for
      const number = ++asked;
      const address = new URL(replay.dataset.moment, location.href);
      if (index < day.times.length - 1 || !("now" in replay.dataset)) address.searchParams.set("at", day.times[index]); // the last point is now
      const exact = await (await fetch(address)).json();
      if (number === asked && cursor === index && exact.containers.length) show(index, exact);
    }, 200);
  }
  slider.addEventListener("input", () => {
    asked += 1;
    move(Number(slider.value));
  });
  document.getElementById("day").addEventListener("pointermove", (event) => {
    if (!(event.buttons & 1)) return;
    pick(event);
  });
  document.getElementById("day").addEventListener("pointerdown", pick);
  function pick(event) {
    const over = plot.plot.over.getBoundingClientRect();
    const index = Math.round(((event.clientX - over.left) / over.width) * (day.times.length - 1));
    slider.value = String(Math.min(day.times.length - 1, Math.max(0, index)));
    asked += 1;
    move(Number(slider.value));
  }
  slider.addEventListener("keydown", (event) => {
    const step = { "+": 1, "=": 1, "-": -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    zoom(step, day.times[cursor]);
  });
  showMarks(day.marks, { first, last, over: plot.plot.over, waits }, (at) => {
    const index = Math.round(((at - first) / (last - first)) * (day.times.length - 1));
    slider.value = String(Math.min(day.times.length - 1, Math.max(0, index)));
    asked += 1;
    move(Number(slider.value));
    slider.focus();
  });
  show(cursor);
  replay.dataset.ready = "true";
}
/** A container's own colour; what is no container is known by its class. */
function showMark(element, { id, colour: number }) {
  if (SUMS.includes(id)) element.classList.add(id);
  else element.dataset.mark = mark(number);
}

/** What else is known of a container at that time. */
const aside = (c) => [
  c.owner,
  c.suspended ? t("state_suspended").toLowerCase() : "",
  typeof c.had === "number" ? t("then_gpu", { part: Math.round(100 * c.had) }) : "",
  typeof c.cpus === "number" ? t("then_cpus", { cpus: c.cpus.toFixed(1) }) : "",
  typeof c.memory === "number" ? t("then_memory", { memory: size(c.memory) }) : "",
];

if (replay) begin();
