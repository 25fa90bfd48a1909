// Lists that change in place, so that focus, hover and text selection survive an update.

export const put = (element, text) => {
  if (element && element.textContent !== text) element.textContent = text;
};

/** Makes the children of `parent` follow `items`: create(item) once for each key, update(child, item) each time. */
export function keyed(parent, items, key, create, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    let child = old.get(key(item));
    if (child) old.delete(key(item));
    else {
      child = create(item);
      child.dataset.key = key(item);
    }
    update(child, item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const child of old.values()) child.remove();
}
