"""What a template wrote, a script writes again a moment later: the same text for the same figure."""

from __future__ import annotations

import random

from tests.support import rows
from web.templatetags.gpushare import duration, size

UNITS = [1, 2**10, 2**20, 2**30, 2**40]
WRITTEN = """async ([name, values]) => {
    const app = document.querySelector('script[type="module"]').src;
    const format = await import(new URL("parts/format.js", app));
    return values.map(format[name]);
}"""


def test_a_size_and_a_duration_have_one_text_in_templates_and_scripts(site, open_as):
    rows.gpu()
    page = open_as("ann", "/")
    draw = random.Random(7)
    # Halves of what is shown last, too: 1.25 GiB lies between two texts.
    sizes = [0, 1, 2**63 - 1, *(unit * eighths // 8 for unit in UNITS for eighths in (*range(1, 40), 804, 8191, 8188))]
    sizes += [draw.randrange(2 ** draw.randrange(1, 60)) for _ in range(300)]
    assert page.evaluate(WRITTEN, ["size", sizes]) == [size(each) for each in sizes]
    seconds = [draw.choice([1, 60, 3600, 86400]) * draw.random() * 70 for _ in range(300)]
    assert page.evaluate(WRITTEN, ["duration", seconds]) == [duration(each) for each in seconds]
