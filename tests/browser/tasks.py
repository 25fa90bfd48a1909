"""Ten things that people come for, done by the mouse and the keyboard on the pages that they find.

tests/browser/test_ten_tasks.py counts their clicks. Each begins on the overview. A click is a press of the mouse;
fields are reached with Tab, and keys are not counted. Whoever does it knows what to look for.
"""

import csv
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from playwright.sync_api import Locator, Page, expect

Opens = Callable[[str], Page]  # the overview as this person sees it
FOCUSED = "(field) => field === document.activeElement"
MOST_TABS = 25


@dataclass
class Named:
    """What the tasks are about: people and things of the scene."""

    waiter: str  # a person, and one of their containers that waits
    waits: str
    away: str  # the person whose paused containers hold the most, and how many are paused
    paused: int
    failed: str  # a container that failed, and a word of its last lines
    word: str
    stopped: str  # the person whose containers are to end, all `count` of them
    count: int
    node: str
    card: int  # a card that is in service


class Hand:
    """Of a person at a page."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.clicks = 0

    def click(self, what: Locator) -> None:
        what.click()
        self.clicks += 1

    def go(self, name: str) -> None:
        """By the bar of pages."""
        self.click(self.page.get_by_role("navigation", name="Pages").get_by_role("link", name=name, exact=True))

    def write(self, field: Locator, text: str) -> None:
        """By Tab from where the focus is."""
        for _ in range(MOST_TABS):
            if field.evaluate(FOCUSED):
                break
            self.page.keyboard.press("Tab")
        expect(field).to_be_focused()
        if field.get_attribute("type") == "datetime-local":
            field.fill(text)  # its parts are typed in the order of the reader's language
        else:
            self.page.keyboard.type(text)


def launch_a_notebook(opens: Opens, named: Named) -> int:
    hand = Hand(opens(named.waiter))
    hand.go("Launch")
    hand.click(hand.page.get_by_role("button", name="Launch JupyterLab", exact=True))
    expect(hand.page.locator("#container")).to_be_visible()
    return hand.clicks


def why_do_i_wait(opens: Opens, named: Named) -> int:
    """As one whose container is none of the first in the queue."""
    hand = Hand(opens(named.waiter))
    hand.click(hand.page.locator("a.who"))
    hand.click(hand.page.locator("#rows").get_by_role("link", name=named.waits, exact=True))
    shown = hand.page.locator('[data-field="waiting"]')
    expect(shown).to_contain_text("in the queue")
    expect(shown).to_contain_text("free")
    return hand.clicks


def free_a_card_whose_owner_is_away(opens: Opens, named: Named) -> int:
    hand = Hand(opens("boss"))
    theirs = hand.page.locator("#attention > li", has=hand.page.get_by_role("link", name=named.away, exact=True))
    hand.click(theirs.get_by_role("button", name=f"Free the memory of all {named.paused}"))
    hand.click(hand.page.get_by_role("dialog").get_by_role("button", name="Free"))
    expect(hand.page.locator(".toast.good")).to_contain_text(f"{named.paused} containers")
    return hand.clicks


def last_month_as_csv(opens: Opens, named: Named) -> int:
    hand = Hand(opens("boss"))
    hand.go("Reports")
    with hand.page.expect_download() as download:
        hand.click(hand.page.get_by_role("link", name="Last month as CSV"))
    with Path(download.value.path()).open() as file:
        assert "vram_gib_hours" in next(csv.reader(file))
    return hand.clicks


def invite_a_student(opens: Opens, named: Named) -> int:
    """With 4 GiB; what is to be sent is in the clipboard at the end, and no password anywhere."""
    hand = Hand(opens("boss"))
    hand.go("People")
    hand.click(hand.page.locator("summary", has_text="New account"))
    hand.write(hand.page.get_by_label("Name", exact=True), "nina@lab.example")
    hand.write(hand.page.get_by_label("GPU memory limit", exact=True), "4GiB")
    hand.click(hand.page.get_by_role("button", name="Make the account"))
    expect(hand.page.locator("#key")).to_contain_text("/join/#")
    hand.click(hand.page.get_by_role("button", name="Copy"))
    return hand.clicks


def what_broke_last_night(opens: Opens, named: Named) -> int:
    hand = Hand(opens("boss"))
    hand.go("Incidents")
    row = hand.page.locator("tbody tr", has=hand.page.get_by_role("link", name=named.failed, exact=True))
    expect(row.first).to_contain_text("Exit code 1")
    expect(row.first.locator("pre")).to_contain_text(named.word)
    return hand.clicks


def stop_all_of_one_person(opens: Opens, named: Named) -> int:
    """As an operator who looks at the overview by person, as chosen before: that choice is kept."""
    page = opens("boss")
    page.get_by_role("button", name="By person").click()
    page.goto("/")
    hand = Hand(page)
    theirs = page.locator("#by-person > li", has=page.get_by_role("link", name=named.stopped, exact=True))
    hand.click(theirs.get_by_role("button", name="Stop all"))
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("#ask-names li")).to_have_count(named.count)
    hand.click(dialog.get_by_role("button", name=f"Stop {named.count}"))
    expect(page.locator(".toast.good")).to_contain_text(f"{named.count} containers stopped.")
    return hand.clicks


def one_card_out_of_service(opens: Opens, named: Named) -> int:
    hand = Hand(opens("boss"))
    hand.go("Nodes")
    hand.click(hand.page.locator("main").get_by_role("link", name=named.node, exact=True))
    hand.click(hand.page.get_by_role("button", name=f"Take GPU {named.card} out of service"))
    expect(hand.page.locator("main .banner").first).to_be_visible()
    return hand.clicks


def announce_maintenance(opens: Opens, named: Named) -> int:
    hand = Hand(opens("boss"))
    page = hand.page
    hand.go("Calendar")
    hand.click(page.locator("summary", has_text="Announce"))
    tomorrow = datetime.now() + timedelta(days=1)
    hand.write(page.get_by_label("Notice", exact=True), "New power supply")
    hand.write(page.get_by_label("Maintenance from", exact=True), f"{tomorrow:%Y-%m-%dT08:00}")
    hand.write(page.get_by_label("To", exact=True), f"{tomorrow:%Y-%m-%dT10:00}")
    hand.click(page.get_by_role("button", name="Announce", exact=True))
    expect(page.locator("#banners")).to_contain_text("New power supply")
    return hand.clicks


def was_this_week_fair(opens: Opens, named: Named) -> int:
    hand = Hand(opens("boss"))
    hand.go("Fairness")
    expect(hand.page.get_by_role("link", name="Last 7 days")).to_have_attribute("aria-current", "page")
    expect(hand.page.locator("main")).to_contain_text("fair share: ")
    return hand.clicks


# Each with the most clicks that it may take.
TASKS: dict[Callable[[Opens, Named], int], int] = {
    launch_a_notebook: 2,
    why_do_i_wait: 2,
    free_a_card_whose_owner_is_away: 2,
    last_month_as_csv: 2,
    invite_a_student: 4,
    what_broke_last_night: 1,
    stop_all_of_one_person: 2,
    one_card_out_of_service: 3,
    announce_maintenance: 3,
    was_this_week_fair: 1,
}
