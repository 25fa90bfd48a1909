"""A container whose memory gave way, and the dialog before a pause that frees it, as a browser shows them."""

import re

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from tests.browser import scenes
from tests.support import rows
from web import audit
from web.models import AllocationEvent, Container, Node, UsageSample

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
    shown = page.locator("#ask-text")
    expect(shown).to_contain_text("to host memory in about")
    seconds = int(re.search(r"in about (\d+) s", shown.inner_text())[1])
    assert abs(seconds - 10 * used) <= 1


@pytest.fixture
def swapped(site):
    """The first of a busy card gave way a minute ago; its memory is in host memory."""
    card, made = scenes.a_busy_card()
    held = made["a"]
    scenes.a_life(held, card)
    Container.objects.filter(pk=held.pk).update(
        node=Node.objects.get(), swap="out", swapped_at=rows.ago(60), swapped=2 * GIB, gave_way="idle",
        gave_way_to="evaluate", suspended_since=None,
    )  # fmt: skip
    held.claims.update(used=0, granted=0)
    out = AllocationEvent(
        at=rows.ago(60), kind="swapped_out", container=held, gpu=card, bytes=2 * GIB, used_after=0,
        detail='It was idle, and gave way to "evaluate". It took 1.41 s.',
    )  # fmt: skip
    audit.append(events=[out])
    UsageSample.objects.filter(container=held, at__gte=rows.ago(60)).update(used=0, granted=0, suspended=0)
    return held


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_has_a_mark_of_its_own_wherever_it_stands(swapped, open_as, shot, theme):
    page = open_as("admin", theme=theme)
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    row = page.locator(f'tr[data-id="{swapped.pk}"]')
    expect(row.locator(".chip")).to_have_text("Swapped out")
    entry = page.locator(f'.card .legend li:has-text("{swapped.name}")')
    expect(entry).to_contain_text("2 GiB in host memory")
    expect(entry.locator(".mark.swapped")).to_be_visible()
    running = page.locator('tr[data-state="running"] .chip').first
    assert colour_of(row.locator(".chip")) != colour_of(running)
    assert row.locator(".mark").evaluate("mark => getComputedStyle(mark).borderStyle") == "dotted"
    shot(page, f"swapped-overview-{theme}")
    page.goto(f"/containers/{swapped.pk}/")
    expect(page.locator(".life .stretch.swapped")).to_have_count(1)
    shot(page, f"swapped-container-{theme}")
    gpu = swapped.claims.get().gpu
    samples = [UsageSample(at=rows.ago(-second), gpu=gpu, container=swapped, used=0, peak=0) for second in range(120)]
    UsageSample.objects.bulk_create(samples)  # as the scheduler goes on to write them
    page.goto("/history/")
    expect(page.locator("#replay")).to_have_attribute("data-ready", "true")
    page.locator("#slider").press("ArrowLeft")
    page.locator("#slider").press("ArrowRight")  # at rest, the very second is asked for
    then = page.locator(f'#then li:has-text("{swapped.name}")')
    expect(then).to_contain_text("2 GiB in host memory")
    expect(then.locator(".mark.swapped")).to_be_visible()
    shot(page, f"swapped-history-{theme}")
    page.goto("/reports/")
    table = page.get_by_role("region", name="Moved to host memory and back")
    expect(table).to_contain_text('gave way to "evaluate"')
    expect(table).to_contain_text("2 GiB")
    shot(page, f"swapped-reports-{theme}")


def colour_of(element):
    return element.evaluate("each => getComputedStyle(each).color")


def test_one_that_waits_to_come_back_can_be_paused_and_one_that_does_not_be_resumed(swapped, open_as):
    page = open_as("admin")
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    row = page.locator(f'tr[data-id="{swapped.pk}"]')
    expect(row.get_by_role("button", name="Resume")).to_be_visible()
    expect(row.get_by_role("button", name="Pause")).to_be_hidden()
    Container.objects.filter(pk=swapped.pk).update(suspended_since=timezone.now())
    expect(row.get_by_role("button", name="Pause")).to_be_visible()
    expect(row.get_by_role("button", name="Resume")).to_be_hidden()
    page.goto(f"/containers/{swapped.pk}/")
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Resume")).to_be_hidden()
