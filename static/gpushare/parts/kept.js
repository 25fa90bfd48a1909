/** What this browser keeps under a name; with a value keeps that, with null nothing. Where it keeps nothing: null. */
export function kept(name, value) {
  try {
    if (value === undefined) return localStorage.getItem(name);
    if (value === null) localStorage.removeItem(name);
    else localStorage.setItem(name, value);
  } catch {
    /* no storage: for this page only */
  }
  return null;
}
