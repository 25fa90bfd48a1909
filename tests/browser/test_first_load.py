"""What the first look at the overview takes from the network, with 200 containers, 30 waiters and the longest names."""

from tests.browser import scenes
from tests.support import wire
from tests.support.site import person

MOST = 250_000  # bytes, heads and the live line's first picture among them
NOT_AT_ONCE = ("xterm", "swagger", "/pages/container.js", "/pages/history.js", "/pages/launch.js")


def test_the_first_load_is_small_and_the_second_one_smaller(site, chromium):
    cards, _ = scenes.a_crowd()
    for card in cards:
        scenes.an_hour_of(card)
    asked, plain = [], []

    def look(response):
        asked.append(response.url)
        length = int(response.headers.get("content-length", 0))
        if length > 2000 and "content-encoding" not in response.headers:
            plain.append((response.url, length))

    with wire.counted(site.url) as line, chromium.new_context(viewport={"width": 1440, "height": 900}) as context:
        page = wire.fresh(context, line, site.cookie(person("ann")))
        page.on("response", look)
        first = wire.load(page, line)
        assert first.total() <= MOST, first
        assert first["Live"] > 1000, first  # 200 containers came by it
        assert min(first["Document"], first["Script"], first["Stylesheet"], first["Fetch"]) > 1000, first
        again = wire.load(page, line)
        assert again["Script"] == again["Stylesheet"] == 0, again  # what one address leads to never changes
    assert plain == []
    assert [url for url in asked if any(part in url for part in NOT_AT_ONCE)] == []
