"""The screen of `top` as lines: pieces of text, each with a style. Nothing here is wider or higher than it may be."""

from collections.abc import Iterable, Sequence

from appliance.cli.client import Json
from appliance.cli.rows import QUEUE_HEADS, container_rows, queue_row
from appliance.cli.text import cut, padded, printable, size, width, wrapped
from appliance.cli.top import columns
from appliance.cli.top.model import HELP, Mode, Model, Seen

Line = list[tuple[str, str]]  # text and its style, a name in STYLES; "" for none

BAR = 40  # cells at most
HUES = ("green", "blue", "magenta", "cyan", "yellow", "red")
USED, IDLE, FOREIGN, FREE = "█", "▒", "░", "·"
STATES = {"running": "green", "suspended": "yellow", "paused": "cyan", "swapped": "magenta", "created": "dim"}
STYLES = {
    "": "", "bold": "1", "dim": "2", "reverse": "7", "alarm": "1;31",
    "red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35", "cyan": "36",
}  # fmt: skip
KEYS = "q quit  ↑↓ select  s sort  r reverse  / filter  k kill  h help"
INDENT = "    "  # of a reason below its row
QUEUES_PART = 3  # one line in so many is for those who wait
DETAILED = 12  # lines from which there is room for the marked one's whole name


def drawn(model: Model, lines: int, cells: int) -> list[Line]:
    """Exactly as many lines, each at most so wide."""
    if model.mode is Mode.HELPING:
        shown: list[Line] = [[(text, "")] for text in HELP.split("\n")]
    else:
        shown = _whole(model, lines - 1, cells)
    shown = [*shown[: lines - 1], *([[]] * (lines - 1 - len(shown))), _foot(model)]
    return [_cropped(line, cells) for line in shown[-lines:]]


def _whole(model: Model, lines: int, cells: int) -> list[Line]:
    bars = _few(list(bars_of(model.seen, cells)), max(1, lines // 3))
    waiting = model.queue()
    room = lines - 1 - len(bars) - (1 if lines >= DETAILED else 0)
    queue = _queue(waiting, model, max(1, room // QUEUES_PART), cells) if room > 2 * QUEUES_PART else []
    containers = _containers(model, room - len(queue), cells)
    detail = [_detail(model)] if lines >= DETAILED else []
    gap: list[Line] = [[]] * max(0, room - len(queue) - len(containers))
    return [_head(model), *bars, *containers, *gap, *queue, *detail]


def _few(lines: list[Line], most: int) -> list[Line]:
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], [(f"and {len(lines) - most + 1} more GPUs", "dim")]]


def _head(model: Model) -> Line:
    if model.trouble:
        return [(printable(f"These figures are old: {model.trouble}"), "alarm")]
    arrow = "↑" if model.backwards else "↓"
    text = f"{model.now.astimezone():%H:%M:%S}  {counts(model.seen)}  by {model.order} {arrow}"
    if not model.pattern:
        return [(text, "")]
    shown = f"{len(model.containers())} of {len(model.seen['containers'])}"
    return [(f"{text}  ", ""), (f'only "{model.pattern}": {shown}', "bold")]


def counts(seen: Seen) -> str:
    states = [container["state"] for container in seen["containers"]]
    return ", ".join(f"{states.count(state)} {state}" for state in STATES if state in states) or "no containers"


def _foot(model: Model) -> Line:
    if model.mode is Mode.ASKING:
        name, owner = model.asked["name"], model.asked["owner"]
        return [(f"Kill {printable(name)} of {printable(owner)}? What it has not saved is lost. y / n ", "alarm")]
    if model.mode is Mode.FILTERING:
        return [(f"/{model.pattern}", "bold"), ("▏", "bold")]
    return [(printable(model.said), "bold")] if model.said else [(KEYS, "dim")]


def _detail(model: Model) -> Line:
    """The marked one with nothing left out: its name is cut in the list if it is longer than the screen bears."""
    found = model.containers()
    if not found:
        return []
    it = found[model.marked()]
    words = (f"{it['name']} of {it['owner']}", it["id"][:8], it["image"], it.get("namespace"))
    return [(printable("  ".join(filter(None, words))), "dim")]


# ---- the cards ----


def bars_of(seen: Seen, cells: int) -> Iterable[Line]:
    """One line a card: what each container uses in its own hue, idle leases, memory of others, what is free."""
    hues = hues_of(seen)
    names = [f"GPU {card['index']}" for card in seen["gpus"]]
    kinds = [printable(card["name"]) for card in seen["gpus"]]
    figures = [_figures(card) for card in seen["gpus"]]
    widest = max(map(width, names), default=0), max(map(width, kinds), default=0), max(map(width, figures), default=0)
    named = widest[0] + widest[1] + widest[2] + BAR + 3 <= cells
    long = max(8, min(BAR, cells - widest[0] - widest[2] - 2))
    for card, name, kind, text in zip(seen["gpus"], names, kinds, figures, strict=True):
        head = padded(name, widest[0]) + (f" {padded(kind, widest[1])}" if named else "")
        yield [(f"{head} ", ""), *_bar(card, seen["containers"], hues, long), (f" {text}", "")]


def hues_of(seen: Seen) -> dict[str, str]:
    """The oldest has the first: a newcomer changes nobody's."""
    return {each["id"]: HUES[at % len(HUES)] for at, each in enumerate(reversed(seen["containers"]))}


def _bar(card: Json, containers: list[Json], hues: dict[str, str], long: int) -> Line:
    whole = max(1, card["most"])
    bar: Line = []
    drawn_so_far, edge = 0, 0.0

    def add(count: int, sign: str, hue: str) -> None:
        """Edges are rounded, not widths, so that the parts always fill the bar exactly."""
        nonlocal drawn_so_far, edge
        edge += count
        upto = max(drawn_so_far, min(long, round(long * edge / whole)))
        bar.append((sign * (upto - drawn_so_far), hue))
        drawn_so_far = upto

    held = [(each, gpu) for each in containers for gpu in each["gpus"] if gpu["uuid"] == card["uuid"]]
    for container, gpu in held:
        add(gpu["used"], USED, hues[container["id"]])
    add(sum(max(0, gpu["granted"] - gpu["used"]) for _, gpu in held), IDLE, "dim")
    add(card["most"] - card["capacity"], FOREIGN, "red")  # what foreign memory takes, which on a capped card is less
    bar.append((FREE * (long - drawn_so_far), "dim"))
    return bar


def _figures(card: Json) -> str:
    load = "" if card["utilisation"] is None else f"  {card['utilisation']} %"
    return f"{size(card['charged'])} of {size(card['capacity'])}, {size(card['free'])} free{load}"


# ---- the tables ----


def _containers(model: Model, lines: int, cells: int) -> list[Line]:
    """The heads, and those of the containers that fit below."""
    found = model.containers()
    model.scroll(lines - 1)
    heads, cells_of = container_rows(found, model.now, model.seen["gpus"])
    rows = [tuple(map(printable, row)) for row in cells_of]
    widths = columns.fitted(heads, rows, cells, columns.CONTAINERS)
    hues, marked = hues_of(model.seen), model.marked()
    shown = [_line(heads, heads, widths, {}, "bold")]
    for at in range(model.first, min(model.first + model.page, len(rows))):
        styles = {"NAME": hues[found[at]["id"]], "STATE": STATES.get(found[at]["state"], "")}
        line = _line(heads, rows[at], widths, styles, "")
        if at == marked:
            line = [(padded("".join(text for text, _ in line), cells), "reverse")]
        shown.append(line)
    return shown[:lines] if found else []


def _queue(waiting: list[Json], model: Model, lines: int, cells: int) -> list[Line]:
    """Heads, and of those who wait the first and what else fits into so many lines.

    A reason that its column would cut stands whole below its row.
    """
    rows = [tuple(map(printable, queue_row(each, model.now))) for each in waiting[:lines]]
    if not rows:
        return []
    heads, why = QUEUE_HEADS, QUEUE_HEADS.index("WHY")
    widths = columns.fitted(heads, rows, cells, columns.QUEUE)
    if below := any(width(row[why]) > widths[why] for row in rows):
        widths = columns.fitted(heads[:why], rows, cells, columns.QUEUE)
    entries: list[list[Line]] = []
    for row in rows:
        reason = wrapped(row[why], max(1, cells - len(INDENT))) if below else []
        entry = [_line(heads, row, widths, {}, ""), *([(INDENT + text, "")] for text in reason)]
        if entries and sum(map(len, entries)) + len(entry) > lines:
            break
        entries.append(entry)
    left = len(waiting) - len(entries)
    more: list[Line] = [[(f"and {left} more wait", "dim")]] if left else []
    return [_line(heads, heads, widths, {}, "bold"), *(line for entry in entries for line in entry), *more]


def _line(
    heads: Sequence[str], row: Sequence[str], widths: dict[int, int], styles: dict[str, str], otherwise: str
) -> Line:
    line: Line = []
    for at, cells in widths.items():
        text = row[at] if row is not heads else heads[at].lstrip(">")
        line += [(padded(cut(text, cells), cells, heads[at].startswith(">")), styles.get(heads[at], otherwise))]
        line += [(" " * columns.GAP, "")]
    return line[:-1]


def _cropped(line: Line, cells: int) -> Line:
    cropped: Line = []
    for text, style in line:
        kept = cut(text, cells)
        cells -= width(kept)
        if kept:
            cropped.append((kept, style))
        if kept != text:
            break
    return cropped


def ansi(line: Line, *, coloured: bool = True) -> str:
    """For a terminal. Each piece ends its own style. The mark is shown without colours, too."""
    return "".join(
        f"\x1b[{STYLES[style]}m{text}\x1b[0m" if style == "reverse" or (style and coloured) else text
        for text, style in line
    )


def full(line: Line, cells: int, *, coloured: bool) -> str:
    """With nothing left of what stood there. At the right margin a terminal would erase the last sign of the line."""
    rest = "\x1b[K" if sum(width(text) for text, _ in line) < cells else ""
    return ansi(line, coloured=coloured) + rest
