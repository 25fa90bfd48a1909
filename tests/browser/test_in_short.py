"""Of test_every_page.py and test_ten_tasks.py what `make test` has time for: pages that change the most, one task."""

from tests.browser import lab, tasks
from tests.browser.conftest import SETTLED, SIZES
from tests.support import axe


def test_axe_finds_nothing_on_the_overview_by_person_and_incidents_answer_in_one_click(site, open_as):
    scene = lab.a_lab(site.home / "logs")
    page = open_as("boss", "/?view=people", role="admin")
    page.locator("#by-person > li").first.wait_for()
    for size, theme in (("wide", "light"), ("phone", "dark")):
        page.set_viewport_size(SIZES[size])
        page.emulate_media(color_scheme=theme)
        page.evaluate(SETTLED)
        assert axe.faults(page) == []
    named = tasks.Named("hanna", "", "", 0, scene.failed.name, "OutOfMemoryError", "", 0, "", 0)
    assert tasks.what_broke_last_night(lambda _: page, named) == 1
