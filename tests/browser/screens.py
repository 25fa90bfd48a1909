"""Every page in both themes at 400, 1,440 and 2,560 pixels, with 200 containers, 30 waiters and the longest names.

    python -m tests.browser.screens [--lab] OUT [NAME …]

--lab: seventy containers of eight people instead, at 390 and 1,440 pixels, which is what a lab's day looks like. It
writes OUT/NAME-WIDTH-THEME.png and says which pages are wider than their window. web/urls.py says which there are.
"""

import contextlib
import os
import sys
from pathlib import Path
from types import SimpleNamespace

WIDTHS = (400, 1440, 2560)
STRANGERS = ("login", "enter")  # what somebody sees who is not signed in
LAB_WIDTHS = (390, 1440)
OWN = ("me",)  # and what is one's own, as the owner of the longest name has it


def main(folder: Path, wanted: list[str], of_a_lab: bool = False) -> int:
    from tests.support.own_home import new_folder

    home = new_folder()
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "appliance.settings",
        "DATABASE_URL": f"sqlite:///{home / 'gpushare.sqlite3'}",
        "GPUSHARE_SECRET_KEY": "for-pictures-only",
        "DJANGO_ALLOW_ASYNC_UNSAFE": "1",
    }
    import django

    django.setup()
    from playwright.sync_api import sync_playwright

    from tests.browser import every, full, lab, scenes
    from tests.support.chromium import CHROMIUM, FLAGS
    from tests.support.site import person, running_site

    folder.mkdir(parents=True, exist_ok=True)
    blocker = SimpleNamespace(unblock=contextlib.nullcontext)
    wrong = 0
    with running_site(home, blocker) as site, sync_playwright() as playwright:
        if of_a_lab:
            scene = lab.a_lab(home / "logs")
            cards, made, more = scene.cards, scene.waiters, {"failed": f"/containers/{scene.failed.pk}/"}
            more |= {"by-person": "/?view=people", "overview-failed": "/?state=failed"}
        else:
            (cards, made), more = scenes.a_crowd(), {}
            for card in cards:
                scenes.an_hour_of(card)
            scenes.a_life(made[-1], cards[1])
            scenes.a_day(cards[0], [person(name) for name in scenes.OWNERS], 40)
            full.fill(cards, made)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for theme in ("light", "dark"):
            context = browser.new_context(color_scheme=theme, base_url=site.url, reduced_motion="reduce")
            admin = site.cookie(person("admin", "admin"))
            context.add_cookies([admin])  # type: ignore[list-item]
            page = context.new_page()
            for name, address in (*every.pages(context.request, made[-1], cards[0]), *more.items()):
                if wanted and name not in wanted:
                    continue
                context.clear_cookies()
                if name not in STRANGERS:
                    viewer = site.cookie(made[-1].owner) if name in OWN else admin
                    context.add_cookies([viewer])  # type: ignore[list-item]
                for width in LAB_WIDTHS if of_a_lab else WIDTHS:
                    page.set_viewport_size({"width": width, "height": 900})
                    page.goto(address)
                    page.wait_for_load_state("load")
                    if page.locator("#connection").count():
                        page.locator('#connection[data-state="live"]').wait_for()
                    if name == "schema-docs":
                        page.locator(".opblock").first.wait_for()
                    page.wait_for_timeout(700)  # charts are drawn
                    page.screenshot(path=folder / f"{name}-{width}-{theme}.png", full_page=True)
                    beyond = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                    if beyond > 0:
                        print(f"{name} at {width}: {beyond} pixels too wide")
                        wrong += 1
            context.close()
        browser.close()
    return wrong


if __name__ == "__main__":
    rest = [given for given in sys.argv[1:] if given != "--lab"]
    if not rest or "--help" in rest:
        sys.exit(__doc__)
    sys.exit(main(Path(rest[0]), rest[1:], "--lab" in sys.argv))
