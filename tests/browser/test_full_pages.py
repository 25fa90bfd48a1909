"""Every page while it is full, on a phone, a laptop and a wide screen: nothing lies over another, nothing comes apart.

Two hundred containers, thirty waiters, the longest names, full groups, logs and lists: what `python -m
tests.browser.screens` takes the pictures of, held to what can be said as a rule. The rest is for eyes.
"""

import pytest

from tests.browser import every, full, lab, scenes
from tests.browser.screens import OWN, STRANGERS, WIDTHS
from tests.support.site import person

FAULTS = """() => {
  const faults = [];
  const say = (what, one) => faults.push(`${what}: ${one.outerHTML.slice(0, 160)}`);
  const seen = (one) => one.checkVisibility({ visibilityProperty: true });
  const cut = (one) => getComputedStyle(one).overflowX !== "visible";
  if (document.documentElement.scrollWidth > innerWidth) say("wider than the window", document.documentElement);
  for (const cell of document.querySelectorAll("main :is(td, th)")) {
    if (!seen(cell) || cut(cell) || cell.closest("thead")?.getBoundingClientRect().width <= 1) continue;
    const right = cell.getBoundingClientRect().right + 1;
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      let inside = texts.currentNode.parentElement;
      while (inside !== cell && !cut(inside)) inside = inside.parentElement;
      if (inside !== cell) continue;
      const range = document.createRange();
      range.selectNodeContents(texts.currentNode);
      if ([...range.getClientRects()].some((line) => line.width && line.right > right)) say("out of its cell", cell);
    }
  }
  for (const box of document.querySelectorAll("main :is([type=checkbox], [type=radio])")) {
    const { width, height } = box.getBoundingClientRect();
    if (seen(box) && (width < 12 || Math.abs(width - height) > 1)) say(`a box of ${width} by ${height}`, box);
  }
  for (const label of document.querySelectorAll("main label[for]:not(.sr, .field label, .sign-in label)")) {
    const control = document.getElementById(label.htmlFor);
    if (!seen(label) || !seen(control)) continue;
    const [one, other] = [label.getBoundingClientRect(), control.getBoundingClientRect()];
    if (one.bottom <= other.top || other.bottom <= one.top) say("a label parted from its field", label);
  }
  for (const table of document.querySelectorAll("main table.stack"))
    if (innerWidth < 600 && table.scrollWidth > table.parentElement.clientWidth + 1) say("beyond its panel", table);
  // What describes the calls for programs may lead to that.
  for (const link of document.querySelectorAll("a[href*='/api/v1/']:not(.swagger-ui a)"))
    if (!/docs/.test(link.href)) say("a link to what is for programs", link);
  return faults;
}"""


@pytest.mark.timeout(900)  # some twenty pages, each at three widths
def test_nothing_lies_over_another_or_comes_apart_on_any_page(site, open_as):
    cards, made = scenes.a_crowd()
    scenes.a_life(made[-1], cards[1])
    scenes.a_day(cards[0], [person(name) for name in scenes.OWNERS], 20, every=10)
    full.fill(cards, made)
    admin = open_as("admin", "/nowhere/", role="admin")
    pages = {"own": open_as(made[-1].owner.username, "/nowhere/", role="user"), "stranger": open_as("", "/login/")}
    faults = []
    for name, address in every.pages(admin.request, made[-1], cards[0]):
        page = pages["own"] if name in OWN else pages["stranger"] if name in STRANGERS else admin
        page.goto(address)
        if page.locator("#connection").count():
            page.locator('#connection[data-state="live"]').wait_for()
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            page.evaluate("new Promise(requestAnimationFrame)")
            faults += [f"{name} at {width}, {fault}" for fault in page.evaluate(FAULTS)]
    assert not faults, "\n".join(faults)


def test_no_name_is_cut_while_there_is_room_beside_it(site, open_as):
    scenes.a_crowd(40, 5)
    page = open_as("admin", role="admin")
    names = page.locator(".containers td.name a")
    page.set_viewport_size({"width": 2560, "height": 900})
    assert names.count() == 40
    cut = "(all) => all.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent)"
    assert names.evaluate_all(cut) == []
    page.set_viewport_size({"width": 1440, "height": 900})
    for name in names.evaluate_all(cut):
        assert page.get_by_title(name).count(), f"nothing tells the rest of {name}"


CUT = """() => [...document.querySelectorAll("main .name a, main .scroll")].filter(
  (one) => one.checkVisibility() && one.scrollWidth > one.clientWidth + 1).map((one) => one.outerHTML.slice(0, 160))"""


@pytest.mark.parametrize("path", ["/queue/", "/people/", "/calendar/"])
def test_on_a_phone_a_lab_has_no_name_and_no_figure_cut_off(site, open_as, path):
    lab.a_lab(site.home / "logs")
    page = open_as("boss", path, size="phone", role="admin")
    page.locator('#connection[data-state="live"]').wait_for()
    if path == "/queue/":
        page.locator("#queue li").nth(29).wait_for()
    assert (page.evaluate(FAULTS), page.evaluate(CUT)) == ([], [])
