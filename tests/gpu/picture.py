"""Draws what three programs got of a card, second by second: all at once by the driver, and in turns.

    python -m tests.gpu.picture LOG > docs/figures/turns.svg

LOG is one of test_turns.py. Its lines "timeline at once: …" and "timeline in turns: …" hold JSON: the programs'
`names` and `weights`, what each did in each second (`seconds`), and in a second by itself (`alone`). Drawn is the one
divided by the other, so that 1 is as much as one program alone gets done.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

COLOURS = ("#2563eb", "#d97706", "#059669")
WIDTH, HEIGHT = 820, 300
TOP, BOTTOM, LEFT, GAP = 58, 52, 48, 40
MOST = 1.25  # of what one alone does: two turns of the same may lie in one second
PANEL = (WIDTH - LEFT - 2 * GAP) / 2
TITLES = {"timeline at once": "All at once, by the driver", "timeline in turns": "In turns, by weight"}


def main() -> None:
    print(picture(Path(sys.argv[1]).read_text()))


def picture(log: str) -> str:
    """An SVG document, of the last of each that tells of three. Raises ValueError for a log without the two lines."""
    found = {
        kind: timeline
        for line in log.splitlines()
        for kind, _, rest in [line.partition(": ")]
        if kind in TITLES and len((timeline := json.loads(rest))["names"]) == len(COLOURS)
    }
    if found.keys() != TITLES.keys():
        raise ValueError(f"the log has none of: {', '.join(TITLES.keys() - found.keys())}")
    body = "\n".join(line for place, kind in enumerate(TITLES) for line in _panel(place, TITLES[kind], found[kind]))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="12" role="img" '
        'aria-label="What three programs got of one card, second by second">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n{body}\n</svg>'
    )


def _panel(place: int, title: str, timeline: Mapping[str, Any]) -> Iterator[str]:
    left = LEFT + place * (PANEL + GAP)
    parts = [
        [done / alone for done in seconds]
        for seconds, alone in zip(timeline["seconds"], timeline["alone"], strict=True)
    ]
    length = min(map(len, parts))
    whole = (HEIGHT - TOP - BOTTOM) / MOST

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - value * whole

    means = [sum(part[:length]) / length for part in parts]
    yield f'<text x="{left}" y="22" font-size="15" font-weight="600" fill="#222">{escape(title)}</text>'
    yield f'<text x="{left}" y="42" fill="#555">together {sum(means):.0%} of what one alone gets done</text>'
    for level in (0, 0.25, 0.5, 0.75, 1):
        yield f'<line x1="{left}" x2="{left + PANEL:.1f}" y1="{y(level):.1f}" y2="{y(level):.1f}" stroke="#e5e5e5"/>'
        if place == 0:
            yield f'<text x="{left - 8}" y="{y(level) + 4:.1f}" text-anchor="end" fill="#555">{level:.0%}</text>'
    step = PANEL / length
    for second in range(length):
        base = 0.0
        for part, colour in zip(parts, COLOURS, strict=True):
            value = part[second]
            yield (
                f'<rect x="{left + second * step:.1f}" y="{y(base + value):.1f}" width="{step * 0.9:.1f}" '
                f'height="{value * whole:.1f}" fill="{colour}"/>'
            )
            base += value
    labels = zip(timeline["names"], timeline["weights"], means, COLOURS, strict=True)
    for number, (name, weight, mean, colour) in enumerate(labels):
        asked = f" (due {weight / sum(timeline['weights']):.0%})" if place else ""
        for row, words in ((22, name), (40, f"{mean:.0%}{asked}")):
            x, below = left + number * PANEL / 3, HEIGHT - BOTTOM + row
            yield f'<text x="{x:.1f}" y="{below}" fill="{colour}">{escape(words)}</text>'


if __name__ == "__main__":
    main()
