"""Documents that are run: what a page shows is what happens.

`console(page)` gives the commands of its ```console blocks with what the page shows for each. What differs from run to
run (ids, clock times, durations) is levelled by `level` on both sides.
"""

import re
from dataclasses import dataclass
from pathlib import Path

_LEVELS = (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "ID"),
    (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?(Z|\+00:00)?)?", "TIME"),
    (r"\b\d\d:\d\d:\d\d\b", "TIME"),
    (r"^[0-9a-f]{8}\b(?= )", "ID"),
    (r"^ *\d+\.\d{4}\b", "ELAPSED"),
    (r"\b\d+\.\d+ ms\b", "SPAN"),
    (r"\b\d+ (d|h|min|s)\b( \d+ (h|min|s)\b)?", "SPAN"),
    (r"\b\d+ %", "LOAD"),
    (r"\b\d\.\d\d(?= +\d|$)", "FIGURE"),  # GiB·hours and their cost
    (r"\s+", " "),
)


@dataclass(frozen=True)
class Example:
    line: int
    command: str
    shown: str


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """The fenced blocks in that language: the number of the first line, and the text."""
    text = page.read_text()
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start(1)) + 1, match[1]) for match in found]


def console(page: Path) -> list[Example]:
    examples = []
    for first, text in blocks(page, "console"):
        parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
        for part in parts:
            command, _, shown = part.partition("\n")
            examples.append(Example(first + text[: text.index("$ " + part)].count("\n"), command, shown))
    return examples


def level(text: str) -> list[str]:
    """The lines, with what differs from run to run made equal."""
    lines = text.rstrip("\n").split("\n")
    for pattern, word in _LEVELS:
        lines = [re.sub(pattern, word, line) for line in lines]
    return [line.strip() for line in lines]
