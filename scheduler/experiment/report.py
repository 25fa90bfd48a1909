"""What `manage.py simulate` prints, and the figures that it draws (SVG)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

from scheduler.experiment.series import Means, Series

# Where the bars of the project are set: the sizes at which the card is short.
SHORT = range(18, 39)

COLOURS = {
    "fair": "#0b6e4f",
    "fifo": "#1f77b4",
    "best-fit": "#e07a1f",
    "recent-use": "#8a4fbf",
    "random": "#7f7f7f",
    "paper-fifo": "#1f77b4",
    "paper-best-fit": "#e07a1f",
    "paper-recent-use": "#8a4fbf",
    "paper-random": "#7f7f7f",
    "bound": "#bbbbbb",
}


def tables(series: Series) -> str:
    """The two tables of the paper's kind, deadlocks, and how each policy stands to the paper's own rules."""
    parts = [
        _table("Finish time (s)", series, lambda means: means.finish, bound=True),
        _table("Mean suspended time (s)", series, lambda means: means.suspended),
        _table("Longest single wait (s)", series, lambda means: means.longest),
    ]
    if any(means.deadlocks for by_size in series.policies.values() for means in by_size.values()):
        parts.append(_table(f"Deadlocks, of {series.seeds} traces", series, lambda means: means.deadlocks))
    if standing := _standing(series):
        parts.append(standing)
    return "\n\n".join(parts)


def _table(title: str, series: Series, pick: Callable[[Means], float | None], *, bound: bool = False) -> str:
    sizes = list(series.bound)
    rows = [[title, *(f"N={size}" for size in sizes)]]
    for policy, by_size in series.policies.items():
        rows.append([policy, *(_number(pick(by_size[size])) for size in sizes)])
    if bound:
        rows.append(["lower bound", *(_number(value) for value in series.bound.values())])
    return _aligned(rows)


def _standing(series: Series) -> str:
    """Each policy against Best-Fit (finish) and FIFO (waits) as the paper describes them."""
    sizes = [size for size in series.bound if size in SHORT]
    if not sizes or not {"paper-best-fit", "paper-fifo"} <= series.policies.keys():
        return ""
    best_fit, fifo = (series.overall(policy, sizes) for policy in ("paper-best-fit", "paper-fifo"))
    if best_fit is None or fifo is None:
        return ""
    rows = [[f"N={sizes[0]} to {sizes[-1]}", "finish/paper-best-fit", "suspended/paper-fifo", "longest/paper-fifo"]]
    for policy in series.policies:
        means = series.overall(policy, sizes)
        ratios = [means[0] / best_fit[0], means[1] / fifo[1], means[2] / fifo[2]] if means else [None] * 3
        rows.append([policy, *("–" if ratio is None else f"{ratio:.3f}" for ratio in ratios)])
    return _aligned(rows)


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width)
                  for i, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in rows
    )  # fmt: skip


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


# ---- figures ----------------------------------------------------------------------------------------------------

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 60, 150, 40, 50


def figure(series: Series, title: str, pick: Callable[[Means], float | None], *, bound: bool = False) -> str:
    """One line a policy; sizes at which a trace ended in a deadlock are left out. An SVG document."""
    lines: dict[str, dict[int, float]] = {}
    for policy, by_size in series.policies.items():
        points = {size: value for size, means in by_size.items()
                  if not means.deadlocks and (value := pick(means)) is not None}  # fmt: skip
        if len(points) > 1:
            lines[policy] = points
    if bound:
        lines["bound"] = dict(series.bound)
    sizes = list(series.bound)
    top = _round_up(max(value for points in lines.values() for value in points.values()))

    def x(size: float) -> float:
        return LEFT + (size - sizes[0]) / max(1, sizes[-1] - sizes[0]) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)

    body = [*_axes(title, sizes, top, x, y)]
    for policy, points in lines.items():
        path = " ".join(f"{x(size):.1f},{y(value):.1f}" for size, value in points.items())
        dashes = ' stroke-dasharray="5 4"' if policy.startswith("paper-") else ""
        width = 3 if policy == "fair" else 1.6
        body.append(
            f'<polyline points="{path}" fill="none" stroke="{COLOURS[policy]}" stroke-width="{width}"{dashes}/>'
        )
    body += _legend(lines, y)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="system-ui, sans-serif" font-size="12" role="img" aria-label="{escape(title)}">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _axes(
    title: str, sizes: Sequence[int], top: float, x: Callable[[float], float], y: Callable[[float], float]
) -> Iterable[str]:
    yield f'<text x="{LEFT}" y="22" font-size="15" font-weight="600" fill="#222">{escape(title)}</text>'
    for step in range(6):
        value = top * step / 5
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#e5e5e5"/>'
        yield f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end" fill="#555">{value:g}</text>'
    for size in sizes:
        yield f'<text x="{x(size):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" fill="#555">{size}</text>'
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle" fill="#555">containers</text>'


def _legend(lines: Mapping[str, Mapping[int, float]], y: Callable[[float], float]) -> Iterable[str]:
    """Each line's name at its end; moved apart where ends are close."""
    below = float("-inf")
    for policy, points in sorted(lines.items(), key=lambda line: -list(line[1].values())[-1]):
        below = max(y(list(points.values())[-1]) + 4, below + 15)
        weight = ' font-weight="700"' if policy == "fair" else ""
        label = "lower bound" if policy == "bound" else policy
        yield f'<text x="{WIDTH - RIGHT + 8}" y="{below:.1f}" fill="{COLOURS[policy]}"{weight}>{label}</text>'


def _round_up(value: float) -> float:
    """The next of 1, 2, 2.5 or 5 times a power of ten, so that five steps are round numbers."""
    scale = 1.0
    while scale * 10 <= value:
        scale *= 10
    return next(scale * factor for factor in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 7.5, 10) if scale * factor >= value)
