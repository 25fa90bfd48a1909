"""The table of containers: searched, filtered, sorted and paged by the server, and worked by keys."""

import re
from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import Route, expect

from tests.browser import scenes
from tests.support import rows
from tests.support.answers import answering, obey
from tests.support.site import person
from web.models import Claim, Command, Container


@pytest.fixture
def many(site):
    """120 containers of two people; job-0 is the oldest."""
    card, owners = rows.gpu(total=80 * rows.GIB), [person("ann"), person("bob")]
    made = [
        Container(name=f"job-{number}", owner=owners[number % 2], image=f"image-{number % 3}", node=card.node,
                  colour=number % 10, gpu_memory=rows.GIB, started_at=rows.ago(60))
        for number in range(120)
    ]  # fmt: skip
    Container.objects.bulk_create(made)
    Claim.objects.bulk_create(
        Claim(container=container, gpu=card, quota=rows.GIB, used=number * 2**20, peak=number * 2**20)
        for number, container in enumerate(made)
    )
    now = timezone.now()
    for number, container in enumerate(made):
        Container.objects.filter(pk=container.pk).update(created_at=now - timedelta(seconds=1000 - number))
    return made


def names(page):
    return page.locator("tr[data-id] .name a")


def row(page, name):
    return page.locator("tr[data-id]", has=page.get_by_role("link", name=name, exact=True))


def test_it_is_paged_sorted_and_searched_by_the_server(many, open_as, shot):
    page = open_as("ann")
    expect(names(page)).to_have_count(50)
    expect(names(page).first).to_have_text("job-119")
    expect(page.locator(".pager")).to_contain_text("Page 1 of 3, 120 containers")
    shot(page, "overview-200")
    page.get_by_role("button", name="Next").click()
    expect(names(page).first).to_have_text("job-69")
    page.get_by_role("button", name="Used / quota / peak").click()
    expect(names(page).first).to_have_text("job-0")
    page.get_by_role("button", name="Used / quota / peak").click()
    expect(names(page).first).to_have_text("job-119")
    expect(page.locator("th.memory")).to_have_attribute("aria-sort", "descending")
    page.get_by_label("Search").fill("image-2")
    expect(page.locator(".pager")).to_have_count(0)
    expect(names(page)).to_have_count(40)
    page.get_by_label("Owner", exact=True).select_option(label="Mine")
    expect(names(page)).to_have_count(20)
    assert "q=image-2" in page.url
    assert "owner=ann" in page.url
    page.reload()
    expect(names(page)).to_have_count(20)
    page.get_by_label("Search").fill("no such thing")
    expect(page.locator("#rows .empty")).to_contain_text("No container matches.")
    page.get_by_role("button", name="Show all").click()
    expect(page.locator(".pager")).to_contain_text("120 containers")


def test_an_address_typed_by_hand_shows_what_it_says_and_ignores_nonsense(many, open_as):
    page = open_as("ann", "/?q=job-11&sort=name&page=1")
    expect(names(page)).to_have_text(["job-11", *(f"job-11{digit}" for digit in range(10))])
    page.goto("/?sort=nothing&page=minus+one&state=asleep")
    expect(names(page)).to_have_count(50)


def test_states_are_filtered(site, open_as):
    card, ann = rows.gpu(), person("ann")
    rows.container("runs", ann, card)
    rows.container("waits", ann, card, suspended_since=rows.ago(3))
    rows.container("rests", ann, card, paused_at=rows.ago(3))
    rows.container("ended-now", ann, card, finished_at=rows.ago(3), exit_code=0)
    rows.container("ended-long-ago", ann, card, finished_at=rows.ago(3000), exit_code=3)
    page = open_as("ann")
    expect(names(page)).to_have_count(4)  # an end is news for ten minutes
    state = page.get_by_label("State", exact=True)
    for value, shown in (("suspended", ["waits"]), ("paused", ["rests"]), ("running", ["runs"]),
                         ("failed", ["ended-long-ago"]), ("exited", ["ended-now"])):  # fmt: skip
        state.select_option(value)
        expect(names(page)).to_have_text(shown)
    state.select_option("all")
    expect(names(page)).to_have_count(5)


def test_whoever_comes_or_goes_is_seen_without_a_reload(site, open_as):
    card, ann = rows.gpu(), person("ann")
    rows.container("first", ann, card)
    page = open_as("ann")
    expect(names(page)).to_have_text(["first"])
    second = rows.container("second", ann, card)
    expect(names(page)).to_have_text(["second", "first"])
    Container.objects.filter(pk=second.pk).update(finished_at=rows.ago(0), exit_code=0)
    expect(row(page, "second")).to_have_attribute("data-state", "exited")
    expect(row(page, "second").get_by_role("button", name="Kill")).to_be_hidden()


def test_a_list_that_comes_while_the_pointer_is_pressed_does_not_take_the_button_from_under_it(site, open_as):
    card, ann = rows.gpu(), person("ann")
    rows.container("here", ann, card, used=0.2)
    page = open_as("ann")
    expect(page.locator("#gpus canvas")).to_be_visible()  # the last that makes room for itself above the table
    held: list[Route] = []
    page.route("**/rows/**", lambda route: route.continue_() if held else held.append(route))
    with page.expect_request("**/rows/**"):
        rows.container("new", ann, card, used=0.2)
    box = row(page, "here").locator('input[name="id"]')
    box.hover()
    page.mouse.down()
    with page.expect_response("**/rows/**"):
        held[0].continue_()
    page.mouse.up()
    expect(box).to_be_checked()
    expect(row(page, "new")).to_be_visible()
    expect(box).to_be_checked()


def test_many_are_resumed_and_many_killed_after_asking(site, open_as):
    card, ann = rows.gpu(), person("ann")
    made = [rows.container(f"job-{number}", ann, card, paused_at=rows.ago(9)) for number in range(3)]
    page = open_as("ann")
    with answering(obey):
        page.get_by_label("Select job-0").check()
        page.get_by_label("Select job-2").check()
        page.locator("#bulk").get_by_role("button", name="Resume").click()
        expect(page.locator(".toast.good")).to_contain_text("2 containers resumed.")
        expect(row(page, "job-2")).to_have_attribute("data-state", "running")
        expect(row(page, "job-1")).to_have_attribute("data-state", "paused")
        expect(page.locator("#bulk")).to_be_hidden()  # what was selected is done with
        page.get_by_label("Select job-0").check()
        page.get_by_label("Select job-2").check()
        page.locator("#bulk").get_by_role("button", name="Kill").click()
        expect(page.get_by_role("dialog")).to_contain_text("Kill 2 containers?")
        expect(page.locator("#ask-names li")).to_have_text(["job-2 · ann", "job-0 · ann"])
        expect(page.get_by_role("dialog")).to_contain_text("Their processes end at once")
        page.get_by_label("Reason").fill("the node goes down")
        page.get_by_role("dialog").get_by_role("button", name="Kill 2").click()
        expect(row(page, "job-0")).to_have_attribute("data-state", "killed")
        page.get_by_label("Select job-1").check()
        page.locator("#bulk").get_by_role("button", name="Kill").click()
        expect(page.get_by_role("dialog").get_by_role("heading")).to_have_text("Kill 1 container?")
    killed = Command.objects.filter(kind="kill")
    assert {command.container_id for command in killed} == {made[0].pk, made[2].pk}
    assert {command.note for command in killed} == {"the node goes down"}


def test_what_is_selected_while_others_are_acted_on_stays_selected(site, open_as):
    card, ann = rows.gpu(), person("ann")
    for number in range(2):
        rows.container(f"job-{number}", ann, card, paused_at=rows.ago(9))
    page = open_as("ann")
    held: list[Route] = []
    page.route("**/containers/act/", lambda route: held.append(route))
    with answering(obey):
        page.get_by_label("Select job-0").check()
        with page.expect_request("**/containers/act/"):
            page.locator("#bulk").get_by_role("button", name="Resume").click()
        page.get_by_label("Select job-1").check()
        held[0].continue_()
        expect(page.locator(".toast.good")).to_contain_text("resumed")
        expect(page.get_by_label("Select job-0")).not_to_be_checked()
        expect(page.get_by_label("Select job-1")).to_be_checked()


def test_some_of_many_are_refused_and_it_says_which_way(site, open_as):
    card = rows.gpu()
    rows.container("mine", person("ann"), card)
    theirs = rows.container("theirs", person("bob"), card)
    page = open_as("ann")
    page.evaluate("id => { document.querySelector('input[name=id]').value = id }", str(theirs.pk))
    page.get_by_label("Select mine").check()
    with answering(obey):
        page.locator("#bulk").get_by_role("button", name="Pause").click()
        expect(page.locator(".toast.bad")).to_contain_text("1 refused")
    expect(page.locator(".toast.bad")).to_contain_text("belongs to bob")


def test_a_row_is_worked_by_keys(site, open_as):
    card, ann = rows.gpu(), person("ann")
    for name in ("older", "newer"):
        rows.container(name, ann, card)
    page = open_as("ann")
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")  # it hears keys by now
    with answering(obey):
        row(page, "newer").locator(".name a").focus()
        page.keyboard.press("x")
        expect(page.locator("#bulk-count")).to_have_text("1 selected")
        page.keyboard.press("p")
        expect(row(page, "newer")).to_have_attribute("data-state", "paused")
        page.keyboard.press("r")
        expect(row(page, "newer")).to_have_attribute("data-state", "running")
        page.keyboard.press("k")
        expect(page.get_by_role("dialog")).to_contain_text("Kill newer?")
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_be_hidden()
        expect(row(page, "newer")).to_have_attribute("data-state", "running")
        row(page, "newer").locator(".name a").focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/containers/.+/"))
    expect(page.get_by_role("heading", level=1)).to_have_text("older")


def test_filters_stand_in_the_address_and_come_back_with_it(site, open_as):
    scenes.a_busy_card()
    page = open_as("op", role="operator")
    page.get_by_label("Owner", exact=True).select_option("ann")
    expect(page.locator("tr[data-id]")).to_have_count(2)
    page.get_by_label("Search").fill("train")
    expect(page.locator("tr[data-id]")).to_have_count(1)
    expect(page).to_have_url(re.compile("owner=ann"))
    colleague = open_as("other", page.url.removeprefix(site.url), role="operator")
    expect(colleague.locator("tr[data-id]")).to_have_count(1)
    expect(colleague.locator("tr[data-id]")).to_contain_text("train-7")
    expect(colleague.get_by_label("Owner", exact=True)).to_have_value("ann")
