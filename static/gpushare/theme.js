// Runs before the first paint, so that a chosen theme never flashes the other one.
{
  const chosen = () => {
    try {
      return localStorage.getItem("theme");
    } catch {
      return null;
    }
  };
  const show = (theme) => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme; // as the system has it
  };
  show(chosen());
  addEventListener("storage", () => show(chosen())); // a second tab follows
  addEventListener("click", (event) => {
    if (!event.target.closest?.("#theme")) return;
    const dark =
      getComputedStyle(document.documentElement).colorScheme === "dark" ||
      (!chosen() && matchMedia("(prefers-color-scheme: dark)").matches);
    const next = dark ? "light" : "dark";
    try {
      localStorage.setItem("theme", next);
    } catch {
      /* no storage: for this page only */
    }
    show(next);
    dispatchEvent(new Event("theme"));
  });
}
