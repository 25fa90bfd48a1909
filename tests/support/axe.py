"""What axe says of a page. Also whether targets are 24 pixels large or as far from each other, which it leaves out of
its own accord."""

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

ASKED = {"rules": {"target-size": {"enabled": True}}}


def faults(page: Page) -> list[str]:
    return [
        f"{one['id']} ({one['impact']}): {one['help']}\n  " + "\n  ".join(node["html"][:300] for node in one["nodes"])
        for one in Axe().run(page, options=ASKED).response["violations"]
    ]
