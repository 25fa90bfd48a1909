"""The queue on the overview is short whoever waits: the first few of each GPU, each with its owner."""

import pytest
from playwright.sync_api import expect

from tests.support import rows
from tests.support.site import person
from web.models import Claim, Container, Gpu


def waiters(card: Gpu, count: int, first: int = 1, owner: str = "ann") -> None:
    for place in range(first, first + count):
        made = rows.container(f"train-{place}", person(owner), card, suspended_since=rows.ago(900 - place),
                              queue_position=place, queue_reason="Needs 3 GiB; 0 bytes is free. Next when holder "
                              "ends, at about 14:30 UTC: 5 earlier runs took 9 to 12 min.")  # fmt: skip
        Claim.objects.filter(container=made).update(waiting=3 << 30)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", ["wide", "phone"])
def test_of_thirty_the_first_three_stand_there_and_the_rest_is_a_link(site, open_as, shot, size, theme):
    waiters(rows.gpu(), 30, owner="a.very.long.name.of.a.person@some-institute.example")
    page = open_as("boss", role="admin", size=size, theme=theme)
    expect(page.locator("#queue li .name")).to_have_text([f"train-{place}" for place in range(1, 4)])
    expect(page.locator("#queue h3")).to_have_text("GPU 0 · 30 waiting")
    expect(page.locator("#queue .whose").first).to_have_text("a.very.long.name.of.a.person@some-institute.example")
    shot(page, f"short-queue-{size}-{theme}")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.get_by_role("link", name="and 27 more").click()
    expect(page.locator("#queue li")).to_have_count(30)
    expect(page.locator("#queue .whose").last).to_contain_text("GPU 0 · a.very")
    shot(page, f"long-queue-{size}-{theme}", whole=False)


def test_attention_is_short_too_until_somebody_asks_for_all_of_it(site, open_as, shot):
    card = rows.gpu()
    waiters(card, 20)
    waiters(card, 11, first=21, owner="bob")
    page = open_as("boss", role="admin")
    items = page.locator("#attention li li")
    expect(items).to_have_count(3)
    expect(page.locator("#attention h3")).to_have_text(["ann", "bob"])
    expect(items.locator("b:not(:empty)")).to_have_count(3)
    more = page.get_by_role("button", name="and 28 more")
    assert page.locator("#containers-title").bounding_box()["y"] < 900  # the table begins within the first screen
    shot(page, "short-attention", whole=False)
    more.click()
    expect(items).to_have_count(31)
    page.get_by_role("button", name="Show fewer").click()
    expect(items).to_have_count(3)
    Container.objects.filter(owner__username="ann").update(suspended_since=None)
    Container.objects.filter(owner__username="bob").update(suspended_since=rows.ago(1))
    expect(page.locator("#attention-more")).to_be_hidden()


def test_each_gpu_has_its_own_few_with_their_places_in_the_whole_queue(site, open_as):
    waiters(rows.gpu(), 2)
    waiters(rows.gpu(1), 4, first=3, owner="bob")
    page = open_as("boss", role="admin")
    expect(page.locator("#queue h3")).to_have_text(["GPU 0 · 2 waiting", "GPU 1 · 4 waiting"])
    expect(page.locator("#queue .place")).to_have_text(["1", "2", "3", "4", "5"])
    expect(page.locator("#queue .more:visible")).to_have_text(["and 1 more"])
    Container.objects.filter(owner__username="bob").update(suspended_since=None, queue_position=None)
    expect(page.locator("#queue h3")).to_have_text(["GPU 0 · 2 waiting"])
    Container.objects.update(suspended_since=None, queue_position=None)
    expect(page.locator("#queue h3")).to_have_count(0)
    expect(page.locator("#no-queue")).to_be_visible()


def test_of_many_gpus_twenty_stand_there_and_how_many_more_there_are(site, open_as):
    for index in range(23):
        waiters(rows.gpu(index), 1, first=index + 1)
    page = open_as("boss", role="admin")
    expect(page.locator("#queue h3")).to_have_count(20)
    expect(page.locator("#queue-more")).to_have_text("and 3 more GPUs with waiting containers")
    Container.objects.filter(queue_position__gt=21).update(suspended_since=None, queue_position=None)
    expect(page.locator("#queue-more")).to_have_text("and 1 more GPU with waiting containers")
    Container.objects.filter(queue_position__gt=5).update(suspended_since=None, queue_position=None)
    expect(page.locator("#queue h3")).to_have_count(5)
    expect(page.locator("#queue-more")).to_be_hidden()
