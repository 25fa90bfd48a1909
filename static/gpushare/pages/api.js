// The API's page: Swagger UI has a dark form of its own, which follows our theme.
{
  const system = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => {
    const { dataset, classList } = document.documentElement;
    classList.toggle("dark-mode", dataset.theme ? dataset.theme === "dark" : system.matches);
  };
  follow();
  system.addEventListener("change", follow);
  for (const news of ["theme", "storage"]) addEventListener(news, follow);

  // Its headings skip a level, from the title's to the groups' and the schemas'.
  const HEADINGS = { "h3.opblock-tag": 2, ".models > h4": 2 };
  // Of what it draws only the operations are a landmark.
  const LANDMARKS = { ".information-container": "About the API", ".scheme-container": "Sign-in for trying calls out" };
  new MutationObserver(() => {
    for (const [found, label] of Object.entries(LANDMARKS)) {
      const part = document.querySelector(`${found}:not([role])`);
      part?.setAttribute("role", "region");
      part?.setAttribute("aria-label", label);
    }
    for (const [found, level] of Object.entries(HEADINGS)) {
      for (const heading of document.querySelectorAll(`${found}:not([aria-level])`)) heading.ariaLevel = level;
    }
  }).observe(document, { childList: true, subtree: true });
}
