// A replay of one namespace of a Kubernetes cluster: its containers, and all others together.
import { t } from "../parts/format.js";

export const OTHERS = "others"; // an id that no container has

/** Offers the namespaces of a day in `field`, beside the one that is chosen; not where there are none. */
export function offer(field, containers) {
  const there = [...field.options].map(({ value }) => value);
  const names = new Set(containers.map(({ namespace }) => namespace));
  field.append(
    ...[...names]
      .filter((name) => name && !there.includes(name))
      .sort()
      .map((name) => new Option(name)),
  );
  field.disabled = field.closest(".named").hidden = field.options.length < 2;
}

/** `containers` with those of other namespaces as one, whose bytes are theirs together; as they are if all are chosen. */
export function only(namespace, containers) {
  const others = containers.filter((container) => namespace && container.namespace !== namespace);
  if (!others.length) return containers;
  const one = {
    id: OTHERS,
    name: t("other_namespaces"),
    colour: null,
    used: others.reduce((sum, { used }) => sum + (used ?? 0), 0),
    values: others[0].values?.map((_, at) => others.reduce((sum, { values }) => sum + values[at], 0)),
  };
  return [...containers.filter((container) => container.namespace === namespace), one];
}
