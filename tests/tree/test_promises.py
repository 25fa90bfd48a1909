"""docs/promises.md and docs/attacks.md: each test that they name is there, and runs when they say."""

import re

import pytest

from tests.tree.promises import ROOT, tier

ROWS = re.findall(
    r"^\| (.+?) \| `(tests/.+?)` \| `(.+?)` \|$", (ROOT / "docs" / "promises.md").read_text(), re.MULTILINE
)
ATTACKS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)`", (ROOT / "docs" / "attacks.md").read_text())))


@pytest.mark.parametrize(("node", "when"), [row[1:] for row in ROWS])
def test_the_test_of_a_promise_is_there_and_runs_when_the_page_says(node: str, when: str) -> None:
    assert tier(node) == when


def test_each_line_of_the_table_is_read_and_no_promise_stands_there_twice() -> None:
    lines = (ROOT / "docs" / "promises.md").read_text().splitlines()
    heads = sum(line.startswith("| promise |") for line in lines)
    assert len(ROWS) == sum(line.startswith("| ") for line in lines) - 2 * heads
    assert len({promise for promise, *_ in ROWS}) == len(ROWS)


@pytest.mark.parametrize("file", ATTACKS)
def test_an_attack_is_repeated_at_every_change(file: str) -> None:
    assert tier(file) == "make test"


def test_a_test_that_is_not_there_is_found() -> None:
    for node in ("tests/core/test_no.py", "tests/core/test_turns.py::test_no"):
        with pytest.raises(LookupError):
            tier(node)
