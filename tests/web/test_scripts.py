"""A template writes it, a script writes it again a moment later: one text for one figure. In Node, without a page."""

import json
import random
import shutil
import subprocess
from typing import Any

import pytest

from tests.support.own_home import ROOT
from tests.support.sizes import CASES
from web.sizes import format_size, parse_size
from web.templatetags.gpushare import duration

NODE = shutil.which("node")
FORMAT = (ROOT / "static/gpushare/parts/format.js").as_uri()
# A page has a catalogue of texts; here there is none.
CALL = """
globalThis.document = { getElementById: () => null };
const [module, name, values] = JSON.parse(process.argv[1]);
const made = await import(module);
console.log(JSON.stringify(values.map((each) => made[name](...each))));
"""
UNITS = [1, 2**10, 2**20, 2**30, 2**40]
pytestmark = pytest.mark.skipif(NODE is None, reason="needs Node.js")


def called(name: str, values: list[Any]) -> list[Any]:
    """What a function of format.js returns for each list of arguments."""
    assert NODE is not None
    # A number of JavaScript's is exact up to 2**53, and so is one that a page is sent.
    given = json.dumps([FORMAT, name, values])
    words = [NODE, "--input-type=module", "--eval", CALL, given]
    answer: list[Any] = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return answer


def test_a_size_has_one_text() -> None:
    draw = random.Random(7)
    # Halves of what is shown last, too: 1.125 GiB lies between two texts.
    sizes = [0, 1, 2**63 - 1, *(unit * eighths // 8 for unit in UNITS for eighths in (*range(1, 40), 804, 8191, 8188))]
    sizes += [draw.randrange(2 ** draw.randrange(1, 60)) for _ in range(300)]
    assert called("size", [[each] for each in sizes]) == [format_size(each) for each in sizes]
    assert called("size", [[size] for size, _ in CASES]) == [text for _, text in CASES]


def test_a_duration_has_one_text() -> None:
    draw = random.Random(7)
    seconds = [draw.choice([1, 60, 3600, 86400]) * draw.random() * 70 for _ in range(300)]
    assert called("duration", [[each] for each in seconds]) == [duration(each) for each in seconds]


def test_a_size_is_read_as_the_server_reads_it() -> None:
    texts = ["2", "1.5g", "1 KiB", "10B", "3kb", " 7 MB ", "0.5k", "5iB", "1.1", "1.1k", "2 Gi B", "1PiB", "1e9"]
    texts += ["", "\u0663"]
    assert called("bytesOf", [[text] for text in texts]) == [bytes_of(text) for text in texts]


def bytes_of(text: str) -> int | None:
    try:
        return parse_size(text)
    except ValueError:
        return None


def test_sizes_that_are_added_up_have_the_sum_that_is_read() -> None:
    draw = random.Random(11)
    parts = [[draw.randrange(2 ** draw.randrange(20, 40)) for _ in range(5)] for _ in range(200)]
    for shown in called("sum", [[each, sum(each)] for each in parts]):
        figures = [float(part.split()[0]) for part in shown["parts"]]
        assert round(sum(figures), 2) == float(shown["total"].split()[0]), shown
