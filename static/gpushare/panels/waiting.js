// Who waits: the list on the overview and the one on the queue's own page.
import { duration, local, make, mark, now, t } from "../parts/format.js";
import { keyed, put } from "../parts/keyed.js";
import { live } from "../parts/live.js";

const here = new URL(document.body.dataset.base, location.href);
export const pageOf = (id) => new URL(`containers/${id}/`, here).pathname;
export const personOf = (name) => new URL(`people/${encodeURIComponent(name)}/`, here).pathname;

/** As the scheduler orders them; those it has not numbered yet stand at the end, the longest waiting first. */
export function waiting() {
  return Object.entries(live.state.containers)
    .filter(([, container]) => container.suspended_since !== null)
    .sort(
      ([, a], [, b]) => (a.queue_position ?? 1e9) - (b.queue_position ?? 1e9) || a.suspended_since - b.suspended_since,
    );
}

/** Those that were handed to a Swarm and wait for a node, the longest waiting first. */
export function withoutNode() {
  return Object.entries(live.state.containers)
    .filter(([, { state, suspended_since, queue_reason }]) => state === "created" && !suspended_since && queue_reason)
    .sort(([, a], [, b]) => a.created_at - b.created_at);
}

const indexOf = (uuid) => live.state.gpus[uuid]?.index ?? Number.POSITIVE_INFINITY;

/** What people call a GPU: its number, and where there are several nodes whose. */
function nameOf(uuid) {
  const gpu = live.state.gpus[uuid];
  if (!gpu) return null;
  return Object.keys(live.state.nodes).length > 1 ? `${gpu.index} · ${gpu.node}` : gpu.index;
}

/** The GPUs that it waits for, by UUID in their order; all of its own while it is not known which. */
function awaited({ gpus }) {
  const all = Object.entries(gpus);
  const some = all.filter(([, claim]) => claim.waiting > 0);
  return (some.length ? some : all).map(([uuid]) => uuid).sort((a, b) => indexOf(a) - indexOf(b));
}

/** Before its owner: at which node it is if there are several, and for which GPUs it waits where that is not just the one `under`. */
function where(container, under) {
  const some = awaited(container);
  const indices = some.length === 1 && some[0] === under ? [] : some.map(indexOf).filter(Number.isFinite);
  const node = Object.keys(live.state.nodes).length > 1 ? [container.node] : [];
  const prefix = [...node, ...(indices.length ? [`GPU ${indices.join(", ")}`] : [])].join(" · ");
  return prefix && `${prefix} · `;
}

/** `queue`: those to be shown; `whole`: all that wait, whose places are shown; `under`: the GPU that the list is of. */
export function showWaiting(list, queue, { whole = queue, under = null, extra = () => [] } = {}) {
  const places = new Map(whole.map(([id], index) => [id, index + 1]));
  keyed(
    list,
    queue,
    ([id]) => id,
    ([id, { owner }]) =>
      make(
        "li",
        {},
        make("span", { class: "place" }),
        make("span", { class: "name" }, make("span", { class: "mark" }), make("a", { href: pageOf(id) })),
        make("time", { class: "faint" }),
        make("span", { class: "whose" }, document.createTextNode(""), make("a", { href: personOf(owner) }, owner)),
        make("span", { class: "why" }),
        ...extra(id),
      ),
    (element, [id, container]) => {
      const [place, name, since, whose, why] = element.children;
      put(place, String(places.get(id)));
      name.firstElementChild.dataset.mark = mark(container.colour);
      put(name.lastElementChild, container.name);
      name.lastElementChild.title = container.name;
      const begun = container.suspended_since ?? container.created_at;
      since.dataset.since = begun;
      put(since, duration(now() - begun));
      const prefix = where(container, under);
      if (whose.firstChild.data !== prefix) whose.firstChild.data = prefix;
      whose.title = container.owner;
      put(why, local(container.queue_reason));
      why.title = why.textContent;
    },
  );
}

const GROUPS = 20; // of GPUs; with several nodes there may be thousands
const FEW = 3; // of each GPU; the queue's own page has them all

/** The first few of each GPU, and how many more there are, containers and GPUs. */
export function showShortQueue(place, allOfIt) {
  const whole = waiting();
  const groups = new Map();
  for (const each of whole) {
    const [gpu = ""] = awaited(each[1]);
    groups.set(gpu, [...(groups.get(gpu) ?? []), each]);
  }
  const beyond = document.getElementById("queue-more");
  beyond.hidden = groups.size <= GROUPS;
  put(beyond.firstElementChild, t("gpus_more", { count: groups.size - GROUPS }));
  keyed(
    place,
    [...groups].sort(([a], [b]) => indexOf(a) - indexOf(b)).slice(0, GROUPS),
    ([gpu]) => `of ${gpu}`,
    () =>
      make(
        "section",
        {},
        make("h3"),
        make("ol", { class: "queue-list" }),
        make("p", { class: "more" }, make("a", { href: allOfIt })),
      ),
    (element, [gpu, queue]) => {
      const [title, list, more] = element.children;
      const index = nameOf(gpu);
      put(title, t(index === null ? "others_wait" : "gpu_waits", { index, count: queue.length }));
      showWaiting(list, queue.slice(0, FEW), { whole, under: gpu });
      more.hidden = queue.length <= FEW;
      put(more.firstElementChild, t("and_more", { count: queue.length - FEW }));
    },
  );
  return whole.length;
}
