"""What a template wrote, a script writes again a moment later: the same text for the same figure."""

from __future__ import annotations

import random

import pytest
from playwright.sync_api import expect

from tests.support import rows
from tests.support.site import person
from web.sizes import format_size, parse_size
from web.templatetags.gpushare import duration

UNITS = [1, 2**10, 2**20, 2**30, 2**40]
WRITTEN = """async ([name, values]) => {
    const app = document.querySelector('script[type="module"]').src;
    const format = await import(new URL("parts/format.js", app));
    return values.map(format[name]);
}"""


def test_a_size_and_a_duration_have_one_text_in_templates_reasons_and_scripts(site, open_as):
    rows.gpu()
    page = open_as("ann", "/")
    draw = random.Random(7)
    # Halves of what is shown last, too: 1.125 GiB lies between two texts.
    sizes = [0, 1, 2**63 - 1, *(unit * eighths // 8 for unit in UNITS for eighths in (*range(1, 40), 804, 8191, 8188))]
    sizes += [draw.randrange(2 ** draw.randrange(1, 60)) for _ in range(300)]
    assert page.evaluate(WRITTEN, ["size", sizes]) == [format_size(each) for each in sizes]
    seconds = [draw.choice([1, 60, 3600, 86400]) * draw.random() * 70 for _ in range(300)]
    assert page.evaluate(WRITTEN, ["duration", seconds]) == [duration(each) for each in seconds]


LABELS = """async (seconds) => {
    const app = document.querySelector('script[type="module"]').src;
    const { chart, timeAxis } = await import(new URL("parts/charts.js", app));
    const place = document.createElement("div");
    place.style.width = "700px";
    document.body.append(place);
    const begun = Date.UTC(2026, 0, 2, 3, 4, 5) / 1000;
    const options = () => ({ axes: [timeAxis(), {}], series: [{}, {}] });
    const { plot } = chart(place, 100, options, [[begun, begun + seconds], [0, 1]]);
    await new Promise(requestAnimationFrame);
    return plot.axes[0]._values.filter(Boolean);
}"""


@pytest.mark.parametrize("seconds", [1, 2, 7, 60, 900, 40_000])
def test_no_two_labels_of_a_time_axis_are_alike(site, open_as, seconds):
    """That of a container of two seconds said "23:37:21" ten times."""
    page = open_as("ann", f"/containers/{rows.container('young', person('ann'), rows.gpu()).pk}/")
    labels = page.evaluate(LABELS, seconds)
    assert labels
    assert len(set(labels)) == len(labels)


def test_the_launch_form_takes_for_a_size_what_the_server_takes_for_one(site, open_as):
    rows.gpu()
    page = open_as("ann", "/launch/", role="user")
    verdict = page.locator(".preview .verdict")
    for text in (
        "2",
        "1.5g",
        "1 KiB",
        "10B",
        "3kb",
        " 7 MB ",
        "0.5k",
        "5iB",
        "1.1",
        "1.1k",
        "2 Gi B",
        "1PiB",
        "1e9",
        "٣",
    ):
        page.get_by_label("Quota on each GPU").fill("1GiB")
        expect(verdict).to_have_text("fits: 5 GiB free")
        page.get_by_label("Quota on each GPU").fill(text)
        expect(verdict).to_have_text("fits: 5 GiB free" if is_size(text) else "")


def is_size(text: str) -> bool:
    try:
        return parse_size(text) > 0
    except ValueError:
        return False
