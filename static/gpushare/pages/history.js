// The replay: a day of one GPU, stacked by container, and a slider through it.
import { chart, colour, sizeAxis, stacked, timeAxis } from "../parts/charts.js";
import { showBand } from "../parts/computing.js";
import { make, mark, size, t } from "../parts/format.js";
import { keyed, put } from "../parts/keyed.js";
import { pageOf } from "../parts/waiting.js";

const THUMB = 16; // pixels; style/page.css gives the slider's thumb this width
const replay = document.getElementById("replay");
document.getElementById("gpu")?.addEventListener("change", (event) => event.target.form.submit());

async function begin() {
  const day = await (await fetch(replay.dataset.day)).json();
  document.getElementById("no-history").hidden = day.containers.length > 0;
  const sums = stacked(day.containers.map(({ values }) => values));
  const layers = [...sums].reverse(); // drawn from the highest sum down, so that each covers what lies beneath it
  const edge = layers.length > 40 ? 0 : 0.5; // many thin layers would be all edges
  const marks = day.containers.map(({ colour: number }) => mark(number)).reverse();
  const slider = document.getElementById("slider");
  slider.max = String(day.times.length - 1);
  slider.value = slider.max;
  let cursor = day.times.length - 1;
  const line = make("i", { class: "now-line" }); // over the chart: 200 layers are not drawn anew for each step of it
  const plot = chart(
    document.getElementById("day"),
    260,
    (panel = colour("--panel"), shades = [...Array(10).keys()].map((number) => colour(`--c${number}`))) => ({
      legend: { show: false },
      cursor: { show: false },
      scales: { y: { range: [0, day.total] } },
      axes: [timeAxis(), sizeAxis()],
      series: [
        {},
        ...layers.map((_, index) => ({
          fill: shades[marks[index]],
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
          },
        ],
      },
    }),
    [day.times, ...layers],
  );

  function show(index, exact = null) {
    cursor = index;
    const at = exact?.at ?? day.times[index];
    const time = new Date(at * 1000);
    put(
      document.getElementById("at"),
      time.toLocaleString([], {
        weekday: "short",
        hour: "2-digit",
        minute: "2-digit",
        ...(exact && { second: "2-digit" }),
        hour12: false,
      }),
    );
    slider.setAttribute("aria-valuetext", time.toLocaleString());
    const held = (exact?.containers ?? day.containers.map((c) => ({ ...c, used: c.values[index] }))).filter(
      (c) => c.used > 0 || c.suspended || c.swapped,
    );
    const total = held.reduce((sum, c) => sum + c.used, 0);
    keyed(
      document.getElementById("then-bar"),
      held,
      ({ id }) => id,
      () => make("span", { class: "used" }),
      (part, c) => {
        part.style.width = `${(100 * c.used) / day.total}%`;
        part.dataset.mark = mark(c.colour);
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
          make("span", { class: `mark ${id === "free" ? "free" : ""}` }),
          id === "free" ? make("span") : make("a", { href: pageOf(id) }),
          make("span", { class: "faint" }),
        ),
      (item, c) => {
        if (c.id !== "free") item.firstElementChild.dataset.mark = mark(c.colour);
        item.firstElementChild.classList.toggle("swapped", Boolean(c.swapped) && !c.used);
        put(item.children[1], c.name);
        put(
          item.children[2],
          [
            c.swapped && !c.used ? t("swapped", { size: size(c.swapped) }) : size(c.used),
            c.owner,
            c.suspended ? t("state_suspended").toLowerCase() : "",
          ]
            .filter(Boolean)
            .join(" · "),
        );
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
      if (index < day.times.length - 1) address.searchParams.set("at", day.times[index]); // the last point is now
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
  show(cursor);
  replay.dataset.ready = "true";
}
if (replay) begin();
