"""A container whose memory gave way, and the dialog before a pause that frees it, as a browser shows them."""

from __future__ import annotations

import re

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from tests.browser import scenes
from web.models import Container, Node

GIB = 1 << 30


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_its_page_says_for_whom_it_gave_way(site, open_as, theme):
    _, made = scenes.a_busy_card()
    Container.objects.filter(pk=made["a"].pk).update(
        swap="out", swapped_at=timezone.now(), swapped=2 * GIB, gave_way="idle", gave_way_to="evaluate"
    )
    page = open_as(made["a"].owner.username, f"/containers/{made['a'].pk}/", theme=theme)
    expect(page.locator("#gave-way")).to_contain_text("It was idle, and gave way to “evaluate”.")
    expect(page.locator('[data-field="state"]')).to_have_text("Swapped out")
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    Container.objects.filter(pk=made["a"].pk).update(swap="", swapped_at=None, swapped=0, gave_way="", gave_way_to="")
    expect(page.locator('[data-field="state"]')).to_have_text("Running")
    expect(page.locator("#gave-way")).to_be_empty()


def test_the_dialog_says_how_long_the_first_move_takes_here(site, open_as):
    _, made = scenes.a_busy_card()
    held = made["a"]
    Node.objects.update(moved={"first": [GIB, 10.0], "out": [GIB, 1.0], "back": [GIB, 2.0]})
    Container.objects.filter(pk=held.pk).update(node=Node.objects.get())
    page = open_as(held.owner.username, f"/containers/{held.pk}/")
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    page.get_by_role("button", name="Pause and free memory").click()
    used = sum(claim.used for claim in held.claims.all()) / GIB
    told = page.locator("#ask-text")
    expect(told).to_contain_text("go to host memory in about")
    seconds = int(re.search(r"in about (\d+) s", told.inner_text())[1])
    assert abs(seconds - 10 * used) <= 1
