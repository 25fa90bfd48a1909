"""The pages of nodes in a real browser: drained, labelled, refused in words."""

from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from tests.support import rows
from web.models import Node


@pytest.fixture
def gpu2(site):
    rows.gpu()
    alive = timezone.now() + timedelta(hours=1)  # to the end of a test, however long it takes
    return Node.objects.create(
        name="gpu2", seen_at=alive, release="0.1", engine="docker", labels={"rack": "a", "disk": "ssd"}
    )


def test_a_node_is_drained_and_labelled_and_removal_is_asked_first(gpu2, open_as, shot):
    page = open_as("boss", "/", role="admin")
    page.get_by_role("link", name="Manage nodes").click()
    expect(page.locator("h1")).to_have_text("Nodes")
    page.get_by_role("link", name="gpu2").click()
    page.get_by_role("button", name="Drain the node").click()
    expect(page.locator("main .banner")).to_contain_text("takes no new launches")
    page.get_by_role("button", name="Remove the label rack").click()
    page.get_by_label("Name", exact=True).fill("gen")
    page.get_by_label("Value", exact=True).fill("h200")
    page.get_by_role("button", name="Set the label").click()
    expect(page.locator(".node-labels")).to_contain_text("gen=h200")
    page.wait_for_load_state()  # its scripts have run, which ask first
    page.get_by_role("button", name="Remove the node").click()
    expect(page.locator("#ask-text")).to_contain_text("Remove gpu2?")
    page.locator("#ask-yes").click()
    expect(page.locator(".error")).to_contain_text('The scheduler of "gpu2" runs.')
    gpu2.refresh_from_db()
    assert gpu2.labels == {"disk": "ssd", "gen": "h200"}
    assert gpu2.drained_at is not None
    assert gpu2.removed_at is None
