"""Pods of a Kubernetes cluster among the containers: found by namespace in the table, and in a day's replay."""

from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from tests.support import rows
from tests.support.site import person
from web import audit
from web.models import AllocationEvent, UsageSample


@pytest.fixture
def pods(site):
    """Two in team-a, one in team-b, and one that no cluster runs; each held its own size all day."""
    card, made = rows.gpu(total=8 * rows.GIB), {}
    specs = (("train", "team-a", 2), ("notebook.main", "team-a", 1), ("serve", "team-b", 1), ("other", "", 1))
    for number, (name, namespace, size) in enumerate(specs):
        at = (
            {"namespace": namespace, "volume": f"{namespace}/{name}", "image": "pytorch/pytorch:2.9.1"}
            if namespace
            else {}
        )
        shown = [{"name": name.partition(".")[0], "uid": "1", "account": "trainer", "containers": ["main"]}]
        made[name] = rows.container(name, person(f"owner-{number}"), card, quota=size, used=size,
                                    colour=number, pods=shown if namespace else [], **at)  # fmt: skip
    now = timezone.now().replace(second=0, microsecond=0)
    UsageSample.objects.bulk_create(
        UsageSample(at=now - timedelta(minutes=minute), span=60, gpu=card, container=made[name],
                    used=size * rows.GIB, peak=size * rows.GIB)
        for minute in range(-5, 1440) for name, _, size in specs
    )  # fmt: skip
    killed = [AllocationEvent(at=now, kind=AllocationEvent.Kind.KILLED, container=made[name]) for name in made]
    audit.append(events=killed)
    return card, made


def test_a_replay_of_one_namespace_shows_the_others_as_one(pods, open_as, shot):
    page = open_as("owner-0", "/history/")
    page.locator("#replay[data-ready]").wait_for()
    then = page.locator("#then li")
    expect(then).to_have_count(5)
    with page.expect_navigation():
        page.get_by_label("Namespace", exact=True).select_option("team-a")
    page.locator("#replay[data-ready]").wait_for()
    expect(then).to_have_count(4)
    for place, words in enumerate((("train", "2 GiB"), ("notebook.main", "1 GiB"), ("Other namespaces", "2 GiB"),
                                   ("free", "3 GiB"))):  # fmt: skip
        for word in words:
            expect(then.nth(place)).to_contain_text(word)
    expect(then.nth(2).get_by_role("link")).to_have_count(0)
    expect(page.locator("#then-bar span")).to_have_count(3)
    expect(page.locator("#marks li")).to_have_count(2)
    shot(page, "history-of-a-namespace")
    with page.expect_navigation():
        page.get_by_label("Show", exact=True).select_option("6")
    page.locator("#replay[data-ready]").wait_for()
    expect(page.get_by_label("Namespace", exact=True)).to_have_value("team-a")
    with page.expect_navigation():
        page.get_by_role("link", name="← Earlier").click()
    page.locator("#replay[data-ready]").wait_for()
    expect(page.get_by_label("Namespace", exact=True)).to_have_value("team-a")
