// What a container computes on its GPUs and on the host, and its RAM: "37 % / 1.2 / 3 GiB", as web/pages/table.py has it.
import { size } from "../parts/format.js";

const known = (value) => value !== null && value !== undefined;

/** Per cent, the mean over those of its GPUs that tell; null where none does. */
export function busy(container) {
  const loads = Object.values(container.gpus)
    .map((claim) => claim.utilisation)
    .filter(known);
  return loads.length ? Math.round(loads.reduce((sum, value) => sum + value, 0) / loads.length) : null;
}

export const load = (container) =>
  [
    known(busy(container)) ? `${busy(container)} %` : "–",
    known(container.cpus_used) ? container.cpus_used.toFixed(1) : "–",
    known(container.memory_used) ? size(container.memory_used) : "–",
  ].join(" / ");
