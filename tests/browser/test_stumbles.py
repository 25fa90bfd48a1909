"""What people stumbled over once: each is a sentence here."""

import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import Group
from django.db.models import F
from playwright.sync_api import Route, expect

from tests.support import rows
from tests.support.answers import answering, obey
from tests.support.site import person
from web.models import Claim, Command, Container, Shortage

ENDED = {"exit_code": 0}


def row(page, container: Container):
    return page.locator(f'tr[data-id="{container.pk}"]')


def test_a_row_says_that_something_of_its_container_is_uncapped(site, open_as, shot):
    made = rows.container("sly", person("ann"), rows.gpu(), used=0.5)
    fine = rows.container("fine", person("ann"), rows.gpu(), used=0.5)
    Claim.objects.filter(container=made).update(processes=[{"pid": 7, "used": 0, "real": 9, "uncapped": True}])
    page = open_as("ann")
    expect(row(page, made).get_by_text("uncapped")).to_be_visible()
    expect(row(page, fine).get_by_text("uncapped")).to_be_hidden()
    shot(page, "uncapped-row")
    Claim.objects.filter(container=made).update(processes=[])
    expect(row(page, made).get_by_text("uncapped")).to_be_hidden()
    Claim.objects.filter(container=fine).update(unexplained=1 << 30)
    expect(row(page, fine).get_by_text("uncapped")).to_be_visible()


def test_the_key_for_a_kill_offers_nothing_on_a_row_that_has_ended(site, open_as):
    made = rows.container("done", person("ann"), rows.gpu(), finished_at=rows.ago(5), **ENDED)
    lives = rows.container("lives", person("ann"), rows.gpu())
    page = open_as("ann")
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")  # it hears keys by now
    row(page, made).locator(".name a").focus()
    for key in "kpr":
        page.keyboard.press(key)
    expect(page.get_by_role("dialog")).to_be_hidden()
    row(page, lives).locator(".name a").focus()
    page.keyboard.press("k")
    expect(page.get_by_role("dialog")).to_contain_text("Kill lives?")
    assert not Command.objects.exists()


def test_the_undo_of_a_pause_goes_with_its_container(site, open_as):
    card = rows.gpu()
    made, other = (rows.container(name, person("ann"), card) for name in ("train", "other"))
    page = open_as("ann")
    page.reload()
    undo = page.get_by_role("button", name="Undo")
    with answering(obey):
        for each in (made, other):
            row(page, each).get_by_role("button", name="Pause").click()
            expect(page.locator(".toast.good").last).to_contain_text(f"{each.name}: pause done.")
        expect(undo).to_have_count(2)
        row(page, made).get_by_role("button", name="Kill").click()
        page.get_by_role("dialog").get_by_role("button", name="Kill").click()
        expect(row(page, made)).to_have_attribute("data-state", "killed")
        expect(undo).to_have_count(1)
    expect(page.locator(".toast", has=undo)).to_contain_text("other: pause done.")


def test_what_was_wrong_with_a_name_goes_when_it_is_another(site, open_as):
    rows.gpu()
    page = open_as("ann", "/launch/", role="user")
    name, shown = page.get_by_label("Name", exact=True), page.locator("#h-name")
    page.locator("#f-image").fill("local")
    name.fill("two words")
    before = shown.inner_text()
    page.get_by_role("button", name="Launch", exact=True).click()
    expect(shown).to_have_attribute("role", "alert")
    expect(shown).not_to_have_text(before)
    name.press_sequentially("x")
    expect(shown).to_have_text(before)
    expect(name).not_to_have_attribute("aria-invalid", "true")
    expect(page.locator(".field.wrong")).to_have_count(0)


def test_a_quota_from_the_images_label_stands_in_its_field(site, open_as):
    made = rows.container("labelled", person("ann"), rows.gpu(), quota=2)
    Container.objects.filter(pk=made.pk).update(gpu_memory=None)
    page = open_as("ann", f"/containers/{made.pk}/")
    expect(page.get_by_label("Quota")).to_have_attribute("placeholder", "2 GiB")


def test_images_that_were_refused_are_not_suggested(site, open_as):
    ann, card = person("ann"), rows.gpu()
    rows.container("ran", ann, card, image="good/one", finished_at=rows.ago(50), **ENDED)
    rows.container("typo", ann, card, image="god/one", started_at=None, finished_at=rows.ago(50),
                   removed_at=rows.ago(50), reason="There is no such image.")  # fmt: skip
    page = open_as("ann", "/launch/")
    assert page.locator("#images option").evaluate_all("all => all.map(one => one.value)") == ["good/one"]


def test_an_ended_container_tells_how_long_it_ran_and_grows_no_older(site, open_as, shot):
    ann, card = person("ann"), rows.gpu()
    lives = rows.container("lives", ann, card, started_at=rows.ago(100))
    start = rows.ago(100)
    done = rows.container("done", ann, card, started_at=start, finished_at=start + timedelta(seconds=75.2), **ENDED)
    Container.objects.update(created_at=rows.ago(110))
    page = open_as("ann")
    expect(row(page, done).locator(".age")).to_contain_text("ran 1 min 15 s, ended ")
    expect(row(page, lives).locator(".age")).to_contain_text(re.compile("[1-3] min"))
    Container.objects.filter(pk=lives.pk).update(finished_at=F("started_at") + timedelta(seconds=90), **ENDED)
    expect(row(page, lives).locator(".age")).to_contain_text("ran 1 min 30 s, ended ")
    shot(page, "ended-rows")
    page.goto(f"/containers/{done.pk}/")
    expect(page.locator('[data-field="ended"]')).to_contain_text("after 1 min 15 s, exit code 0")


def test_killing_many_gives_a_sign_at_once(site, open_as):
    ann, card = person("ann"), rows.gpu()
    for number in range(38):
        rows.container(f"train-{number}", ann, card, quota=0.1)
    page = open_as("ann")
    held: list[Route] = []
    page.route(
        "**/containers/act/", lambda route: held.append(route)
    )  # the server does not even hear of it before there is a sign
    with answering(obey):
        page.locator("#pick-all").check()
        page.locator('[data-bulk="kill"]').click()
        page.get_by_role("dialog").get_by_role("button", name="Kill 38").click()
        expect(page.locator(".toast")).to_contain_text("Killing 38 containers")
        expect(page.locator('[data-bulk="kill"]')).to_have_attribute("aria-busy", "true")
        held[0].continue_()
        expect(page.locator(".toast.good")).to_contain_text("38 containers killed.")
    expect(page.get_by_text("Killing 38 containers")).to_have_count(0)


@pytest.mark.parametrize("size", ["wide", "phone"])
def test_a_long_reason_to_wait_leaves_the_buttons_of_a_containers_page_on_one_line(site, open_as, shot, size):
    reason = "Starts when its whole quota of 40 GiB is free (now 0 bytes). Its first request: 66 MiB. Goes on when "
    made = rows.container(
        "waits",
        person("ann"),
        rows.gpu(),
        on_shortage=Shortage.WAIT,
        suspended_since=rows.ago(75),
        queue_position=31,
        queue_reason=f"{reason}{'a-very-long-name-of-a-training, ' * 4}x have ended.",
    )
    page = open_as("ann", f"/containers/{made.pk}/", size=size)
    expect(page.locator('[data-field="waiting"]')).to_contain_text(
        re.compile(r"Place 31 in the queue, waiting \d+ min")
    )
    shot(page, f"waiting-{size}", whole=False)
    if size == "wide":
        tops = page.locator(".title .act:visible, .title a.button").evaluate_all("all => all.map(b => b.offsetTop)")
        assert len(tops) > 2
        assert len(set(tops)) == 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_what_is_paused_is_not_offered_to_be_paused(site, open_as):
    """Its memory can still be freed: the button says that alone, and so does the question."""
    made = rows.container("train", person("ann"), rows.gpu(), used=2.0)
    page = open_as("ann", f"/containers/{made.pk}/")
    expect(page.get_by_role("button", name="Pause and free memory")).to_be_visible()
    expect(page.get_by_role("button", name="Free its memory")).to_be_hidden()
    Container.objects.filter(pk=made.pk).update(paused_at=rows.ago(1))
    expect(page.get_by_role("button", name="Pause")).to_have_count(0)
    page.get_by_role("button", name="Free its memory").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Free the memory of train, which is paused?")
    expect(dialog.get_by_role("button", name="Pause")).to_have_count(0)


@pytest.mark.parametrize("path", ["/people/ann/", "/groups/vision/"])
def test_pages_about_people_are_marked_as_theirs_in_the_bar(site, open_as, path):
    person("ann")
    Group.objects.create(name="vision")
    page = open_as("boss", path, role="admin")
    marked = page.get_by_role("navigation", name="Pages").locator("[aria-current]")
    expect(marked).to_have_text(["People"])
    expect(marked).to_have_attribute("aria-current", "true")
    marked.click()
    expect(marked).to_have_attribute("aria-current", "page")
