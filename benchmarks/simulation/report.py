"""What `python -m benchmarks.simulation` prints, and the figures that it draws (SVG)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from statistics import fmean

from benchmarks.simulation.published import Measured
from benchmarks.simulation.series import Series
from benchmarks.simulation.workloads import TYPES

# Where the bars of the project are set: the sizes at which the card is short.
SHORT = range(18, 39)

COLOURS = {
    "fair": "#0b6e4f",
    "fifo": "#1f77b4",
    "best-fit": "#e07a1f",
    "recent-use": "#8a4fbf",
    "bound": "#bbbbbb",
}
OTHER = "#7f7f7f"
DASHES = {"paper-": "5 4", "measured-": "1 3"}  # as the paper describes it; as its authors measured it
DRAWN = ("fifo", "best-fit")  # of what was measured: the other two lie on these


def tables(series: Series) -> str:
    """The two tables of the paper's kind, deadlocks, and how each policy stands to the paper's rules and figures."""
    parts = [
        _table("Finish time (s)", series, "finish", bound=True),
        _table("Mean suspended time (s)", series, "suspended"),
        _table("Longest single wait (s)", series, "longest"),
    ]
    if any(means.deadlocks for by_size in series.policies.values() for means in by_size.values()):
        rows = [[policy, *(str(means.deadlocks) for means in by_size.values())]
                for policy, by_size in series.policies.items()]  # fmt: skip
        parts.append(aligned([_heads(f"Deadlocks, of {series.seeds} traces", series), *rows]))
    parts += filter(None, [_standing(series), _beside_measured(series), _types() if series.measured else ""])
    return "\n\n".join(parts)


def _types() -> str:
    """What the paper's containers are, by its Table III, and what is taken for what it does not give by type."""
    heads = ["Types of container", "MiB (Table III)", "seconds (there 5 to 45, by size)"]
    return aligned([heads, *([name, str(mib), f"{seconds:.0f}"] for name, mib, seconds in TYPES)])


def _heads(title: str, series: Series) -> list[str]:
    return [title, *(f"N={size}" for size in series.bound)]


def _table(title: str, series: Series, field: str, *, bound: bool = False) -> str:
    """A line a policy, a column a size; the mean over all sizes only where no trace ended in a deadlock."""
    rows = [[*_heads(title, series), "mean"]]

    def add(name: str, values: Sequence[float | None], *, whole: bool = True) -> None:
        known = [value for value in values if value is not None]
        mean = sum(known) / len(known) if whole and len(known) == len(values) else None
        rows.append([name, *(_number(value) for value in (*values, mean))])

    for policy, by_size in series.policies.items():
        whole = not any(means.deadlocks for means in by_size.values())
        add(policy, [getattr(by_size[size], field) for size in series.bound], whole=whole)
    if bound:
        add("lower bound", list(series.bound.values()))
    if field in Measured.__slots__:
        for policy, measured in series.measured.items():
            add(f"{policy}, measured", [getattr(measured[size], field) for size in series.bound])
    return aligned(rows)


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
    return aligned(rows)


NEAR = 0.15  # so far may a finish be from the paper's, to count as the same

NOISE = """\
"measured": by the paper's authors (ConVGPU, Tables IV and V), each figure the mean of six runs. The mean finish of six
of our traces has, under FIFO, a standard deviation of {least:.0f} to {most:.0f} s, depending on N: a single point says
little, the mean over all N more."""


def _beside_measured(series: Series) -> str:
    """Each of the paper's four, as it describes it and as it is here, against what its authors measured."""
    rows = []
    sizes = list(series.bound)
    for name in (f"{prefix}{policy}" for policy in series.measured for prefix in ("paper-", "")):
        if name not in series.policies:
            continue
        theirs = series.measured[name.removeprefix("paper-")]
        near = finish = suspended = "–"
        if means := series.overall(name, sizes):
            ratios = [(series.policies[name][size].finish or 0.0) / theirs[size].finish for size in sizes]
            near = f"{sum(abs(ratio - 1) <= NEAR for ratio in ratios)} of {len(sizes)}"
            finish = f"{means[0] / fmean(theirs[size].finish for size in sizes):.3f}"
            suspended = f"{means[1] / fmean(theirs[size].suspended for size in sizes):.3f}"
        rows.append([name, finish, near, suspended])
    if not rows:
        return ""
    heads = ["Of what the paper measured, mean over N", "finish", f"points within {NEAR:.0%}", "suspended"]
    fifo = series.policies.get("paper-fifo", {}).values()
    six = [means.deviation / 6**0.5 for means in fifo if means.deviation is not None]
    noise = f"\n\n{NOISE.format(least=min(six), most=max(six))}" if six else ""
    return aligned([heads, *rows]) + noise


def aligned(rows: Sequence[Sequence[str]]) -> str:
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


def figure(series: Series, title: str, field: str, *, bound: bool = False) -> str:
    """One line a policy, `field` of its means, without sizes at which a trace ended in a deadlock. An SVG document."""
    lines: dict[str, dict[int, float]] = {}
    for policy, by_size in series.policies.items():
        points = {size: value for size, means in by_size.items()
                  if not means.deadlocks and (value := getattr(means, field)) is not None}  # fmt: skip
        if len(points) > 1:
            lines[policy] = points
    for policy in DRAWN:
        if len(measured := series.measured.get(policy, {})) > 1:
            lines[f"measured-{policy}"] = {size: getattr(times, field) for size, times in measured.items()}
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
        prefix, name = _parts(policy)
        dashes = f' stroke-dasharray="{DASHES[prefix]}"' if prefix else ""
        width, colour = 3 if policy == "fair" else 1.6, COLOURS.get(name, OTHER)
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashes}/>')
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
        prefix, name = _parts(policy)
        label = "lower bound" if name == "bound" else f"{name}, measured" if prefix == "measured-" else policy
        yield f'<text x="{WIDTH - RIGHT + 8}" y="{below:.1f}" fill="{COLOURS.get(name, OTHER)}"{weight}>{label}</text>'


def _parts(line: str) -> tuple[str, str]:
    """What a line stands for: a prefix of DASHES or nothing, and a policy."""
    prefix = next((prefix for prefix in DASHES if line.startswith(prefix)), "")
    return prefix, line.removeprefix(prefix)


def _round_up(value: float) -> float:
    """The next of 1, 2, 2.5 or 5 times a power of ten, so that five steps are round numbers."""
    scale = 1.0
    while scale * 10 <= value:
        scale *= 10
    return next(scale * factor for factor in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 7.5, 10) if scale * factor >= value)
