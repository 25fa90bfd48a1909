// Who waits: the list on the overview and the one on the queue's own page.
import { duration, make, mark, now } from "./format.js";
import { keyed, put } from "./keyed.js";
import { live } from "./live.js";

const here = new URL(document.body.dataset.base, location.href);
export const pageOf = (id) => new URL(`containers/${id}/`, here).pathname;

/** As the scheduler orders them; those it has not numbered yet stand at the end, the longest waiting first. */
export function waiting() {
  return Object.entries(live.state.containers)
    .filter(([, container]) => container.suspended_since !== null)
    .sort(
      ([, a], [, b]) => (a.queue_position ?? 1e9) - (b.queue_position ?? 1e9) || a.suspended_since - b.suspended_since,
    );
}

export function showWaiting(list, queue, extra = () => []) {
  document.getElementById("no-queue").hidden = queue.length > 0;
  keyed(
    list,
    queue,
    ([id]) => id,
    ([id]) =>
      make(
        "li",
        {},
        make("span", { class: "place" }),
        make("span", { class: "name" }, make("span", { class: "mark" }), make("a", { href: pageOf(id) })),
        make("time", { class: "faint" }),
        make("span", { class: "why" }),
        ...extra(id),
      ),
    (element, [id, container]) => {
      const [place, name, since, why] = element.children;
      put(place, String(queue.findIndex(([other]) => other === id) + 1));
      name.firstElementChild.dataset.mark = mark(container.colour);
      put(name.lastElementChild, container.name);
      name.lastElementChild.title = container.name;
      since.dataset.since = container.suspended_since;
      put(since, duration(now() - container.suspended_since));
      put(why, container.queue_reason);
    },
  );
}
