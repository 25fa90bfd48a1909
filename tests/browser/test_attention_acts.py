"""What can be done about it in one click: for each, for all that one person has of a kind, and on the host."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser import scenes
from tests.support import rows
from tests.support.answers import answering, obey
from tests.support.site import person
from web.models import Claim, Command, Container, Gpu


@pytest.fixture
def waiting(site):
    """Three of ann's wait, the last of them at the head of the queue; two of bob's keep them waiting: one is paused."""
    card, ann, bob = rows.gpu(), person("ann"), person("bob")
    made = [
        rows.container(f"wait-{number}", ann, card, suspended_since=rows.ago(900 - number), queue_position=3 - number)
        for number in range(3)
    ]
    rows.container("stands", bob, card, quota=2, used=1.5, paused_at=rows.ago(500))
    rows.container("idles", bob, card, quota=2, used=1.5, idle_since=rows.ago(500))
    return made


def of(page, who):
    return page.locator("#attention > li").filter(has=page.get_by_role("heading", name=who, exact=True))


def test_one_that_waits_is_served_first_and_that_can_be_undone(waiting, open_as):
    page = open_as("op", role="operator")
    page.locator("#attention-more").click()
    line = of(page, "bob").locator(".hung > li", has_text='"wait-1"')
    before = [str(made.pk) for made in reversed(waiting)]
    with answering(obey):
        line.get_by_role("button", name="Serve it first").click()
        undo = page.locator(".toast").get_by_role("button", name="Undo")
        expect(undo).to_be_visible()
        assert Command.objects.get(kind="reorder").arguments["containers"] == [str(waiting[1].pk)]
        with page.expect_response(re.compile("/queue/reorder/$")):
            undo.click()
    assert Command.objects.filter(kind="reorder").latest("created_at").arguments["containers"] == before


def test_only_who_orders_the_queue_is_offered_to(waiting, open_as):
    page = open_as("ann")
    page.locator("#attention-more").click()
    expect(page.locator(".hung > li")).to_have_count(3)
    expect(page.get_by_role("button", name="Serve it first")).to_have_count(0)
    expect(page.locator(".hung > li").first.get_by_role("button")).to_have_text(["Kill"])


def test_who_waits_stands_beneath_the_cause_and_is_not_offered_to_be_killed_with_the_others(waiting, open_as):
    """Waiters stood first, with "Kill all 3", and what they waited for behind "and 2 more"."""
    page = open_as("op", role="operator")
    expect(page.locator("#attention > li > h3")).to_have_text(["bob"])
    page.locator("#attention-more").click()
    expect(of(page, "bob").locator(".hung > li", has_text="ann")).to_have_count(3)
    expect(page.get_by_role("button", name="Kill all")).to_have_text(["Kill all 2"])  # the holders


def test_all_that_a_person_has_of_one_kind_are_ended_in_one_go_with_a_word_for_the_log(waiting, open_as):
    page = open_as("op", role="operator")
    page.get_by_role("button", name="Kill all 2").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Kill 2 containers?")
    dialog.get_by_role("textbox").fill("the machine is needed")
    with answering(obey):
        dialog.get_by_role("button", name="Kill 2").click()
        expect(page.locator(".toast")).to_contain_text("2 containers killed.")
    killed = Command.objects.filter(kind="kill")
    assert {command.container.name for command in killed} == {"stands", "idles"}
    assert {command.note for command in killed} == {"the machine is needed"}


def test_what_is_offered_for_all_is_what_each_of_them_can_take(waiting, open_as):
    page = open_as("op", role="operator")
    bobs = of(page, "bob").locator("li").first
    expect(bobs).to_contain_text("2 containers are paused or idle while others wait")
    expect(bobs.get_by_role("button")).to_have_text(["Free the memory of all 2", "Kill all 2"])  # one is not paused
    bobs.get_by_role("button", name="Free the memory").click()
    expect(page.get_by_role("dialog")).to_contain_text("3 GiB of GPU memory to host memory")
    with answering(obey):
        page.get_by_role("dialog").get_by_role("button", name="Free the memory").click()
        expect(page.locator(".toast")).to_contain_text("2 containers paused, their memory freed.")
    asked = Command.objects.filter(kind="pause")
    assert [command.arguments["free_memory"] for command in asked] == [True, True]
    expect(bobs.get_by_role("button")).to_have_text(["Resume all 2", "Free the memory of all 2", "Kill all 2"])


def test_one_alone_has_no_line_for_all(site, open_as):
    _, made = scenes.a_busy_card()
    Container.objects.filter(pk=made["c"].pk).update(suspended_since=rows.ago(400))
    page = open_as("op", role="operator")
    expect(page.locator("#attention > li").first).to_contain_text("waits for memory")
    expect(page.locator("#attention [data-bulk]")).to_have_count(0)


def test_what_only_the_host_can_mend_has_its_command_ready(site, open_as):
    gpu = rows.gpu()
    Gpu.objects.filter(pk=gpu.pk).update(xid=79, xid_at=rows.ago(1))
    page = open_as("op", role="operator")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy the command").click()
    expect(page.locator(".toast")).to_contain_text("dmesg | grep Xid")
    assert page.evaluate("navigator.clipboard.readText()") == "dmesg | grep Xid"
    looker = open_as("eve", role="viewer")
    expect(looker.locator("#attention")).to_contain_text("XID 79")
    expect(looker.locator("#attention button")).to_have_count(0)


def test_without_a_clipboard_the_command_is_shown_to_be_copied_by_hand(site, open_as):
    gpu = rows.gpu()
    Gpu.objects.filter(pk=gpu.pk).update(xid=79, xid_at=rows.ago(1))
    page = open_as("op", role="operator")
    page.evaluate("delete Navigator.prototype.clipboard")  # as over plain http from another host
    page.get_by_role("button", name="Copy the command").click()
    expect(page.locator(".toast")).to_contain_text("dmesg | grep Xid")


def test_what_fails_again_and_again_is_launched_again_from_a_form_that_can_mend_it(site, open_as):
    card, ann = rows.gpu(), person("ann")
    for number in range(3):
        rows.container(f"run-{number}", ann, card, exit_code=1, command=["train.py"], finished_at=rows.ago(60))
    page = open_as("ann")
    page.locator("#attention").get_by_role("link", name="Launch again").click()
    expect(page.get_by_role("textbox", name="Command")).to_have_value("train.py")


def test_the_buttons_follow_what_can_be_done_now(site, open_as):
    card, bob = rows.gpu(), person("bob")
    waits = rows.container("waits", person("ann"), card, suspended_since=rows.ago(10))
    Claim.objects.filter(container=waits).update(waiting=1)
    held = rows.container("held", bob, card, quota=2, used=1, paused_at=rows.ago(500))
    page = open_as("bob")
    expect(of(page, "bob").get_by_role("button")).to_have_text(["Resume", "Free its memory", "Kill"])
    Container.objects.filter(pk=held.pk).update(paused_at=None, idle_since=rows.ago(500))
    expect(of(page, "bob").get_by_role("button")).to_have_text(["Free its memory", "Kill"])
