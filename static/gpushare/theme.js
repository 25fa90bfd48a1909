// Runs before the first paint: a chosen theme never flashes the other one, and times are written in the reader's zone.
{
  const { timeZone } = Intl.DateTimeFormat().resolvedOptions();
  const cookieZone = () => /(?:^|; )zone=([^;]*)/.exec(document.cookie)?.[1] ?? "UTC";
  if (cookieZone() !== timeZone) {
    // biome-ignore lint/suspicious/noDocumentCookie: the Cookie Store API needs TLS
    document.cookie = `zone=${timeZone}; path=/; max-age=31536000; samesite=lax`;
    if (cookieZone() === timeZone) location.reload(); // this page was written in another zone
  }
}
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
