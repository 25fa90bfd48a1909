// What a container computes on its GPUs and on the host, and its RAM: "37 % / 1.2 / 3 GiB", as web/pages/table.py has it.
import { size } from "../parts/format.js";
import { mean } from "./computing.js";

const known = (value) => value !== null && value !== undefined;

/** Per cent; null where none of its GPUs tells. */
export function busy(container) {
  const part = mean(container, "utilisation");
  return part === null ? null : Math.round(part);
}

export const load = (container) =>
  [
    known(busy(container)) ? `${busy(container)} %` : "–",
    known(container.cpus_used) ? container.cpus_used.toFixed(1) : "–",
    known(container.memory_used) ? size(container.memory_used) : "–",
  ].join(" / ");
