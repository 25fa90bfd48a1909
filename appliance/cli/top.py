"""`gpushare top`: one screen with the cards, who holds what, and who waits."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from appliance.cli.client import Client, Json
from appliance.cli.errors import Problem
from appliance.cli.output import show
from appliance.cli.rows import CONTAINER_HEADS, QUEUE_HEADS, container_row, queue_row
from appliance.cli.text import printable, size

Seen = dict[str, list[Json]]

BAR = 40  # characters
HUES = ("green", "blue", "magenta", "cyan", "yellow", "red")
USED, IDLE, FOREIGN, FREE = "█", "▒", "░", "·"
STATES = {"running": "green", "suspended": "yellow", "paused": "cyan", "swapped": "magenta", "created": "dim"}


def watch(client: Client, *, once: bool, interval: float, as_json: bool) -> None:
    """Until Ctrl-C; one look only where nobody looks at a screen."""
    with suppress(KeyboardInterrupt):
        if as_json or once or not sys.stdout.isatty():
            _print(client, interval, as_json, once=once or not as_json)
        else:
            _live(client, interval)


def _live(client: Client, interval: float) -> None:
    seen, trouble = look(client), ""
    with Live(screen(seen, client.now()), screen=True, auto_refresh=False) as live:
        while True:
            live.update(screen(seen, client.now(), trouble), refresh=True)
            time.sleep(interval)
            try:
                seen, trouble = look(client), ""
            except Problem as problem:
                if not problem.away:
                    raise
                trouble = problem.line()  # what is seen is old, and the screen says so


def _print(client: Client, interval: float, as_json: bool, *, once: bool) -> None:
    while True:
        seen = look(client)
        if as_json:
            show(seen, True, str)
        else:
            Console().print(screen(seen, client.now()))
        if once:
            return
        time.sleep(interval)


def look(client: Client) -> Seen:
    return {
        "gpus": list(client.each("gpus/")),
        "containers": list(client.containers()),
        "queue": list(client.each("queue/")),
    }


def screen(seen: Seen, now: datetime, trouble: str = "") -> RenderableType:
    hues = {container["id"]: HUES[index % len(HUES)] for index, container in enumerate(seen["containers"])}
    parts: list[RenderableType] = [_head(seen, now, trouble), _bars(seen, hues)]
    if seen["containers"]:
        parts.append(_table(CONTAINER_HEADS, [_styled(each, now, hues) for each in seen["containers"]]))
    if seen["queue"]:
        parts.append(
            _table(QUEUE_HEADS, [[Text(printable(cell)) for cell in queue_row(each, now)] for each in seen["queue"]])
        )
    return Group(*parts)


def _head(seen: Seen, now: datetime, trouble: str) -> Text:
    states = [container["state"] for container in seen["containers"]]
    counts = ", ".join(f"{states.count(state)} {state}" for state in STATES if state in states)
    if trouble:
        return Text(printable(f"These figures are old: {trouble}"), style="bold red")
    return Text(f"{now.astimezone():%H:%M:%S}  {counts or 'no containers'}")


def _bars(seen: Seen, hues: dict[str, str]) -> Table:
    """One line a card: what each container uses in its own hue, idle leases, memory of others, what is free."""
    bars = Table.grid(padding=(0, 1))
    for card in seen["gpus"]:
        bars.add_row(
            f"GPU {card['index']}", Text(printable(card["name"])), _bar(card, seen["containers"], hues), _figures(card)
        )
    return bars


def _bar(card: Json, containers: list[Json], hues: dict[str, str]) -> Text:
    whole = max(1, card["most"])
    bar, drawn, edge = Text(), 0, 0.0

    def add(count: int, sign: str, hue: str) -> None:
        """Edges are rounded, not widths, so that the parts always fill the bar exactly."""
        nonlocal drawn, edge
        edge += count
        upto = min(BAR, round(BAR * edge / whole))
        bar.append(sign * (upto - drawn), hue)
        drawn = upto

    held = [(each, gpu) for each in containers for gpu in each["gpus"] if gpu["uuid"] == card["uuid"]]
    for container, gpu in held:
        add(gpu["used"], USED, hues[container["id"]])
    add(sum(max(0, gpu["granted"] - gpu["used"]) for _, gpu in held), IDLE, "dim")
    add(card["most"] - card["capacity"], FOREIGN, "red")  # what foreign memory takes, which on a capped card is less
    bar.append(FREE * (BAR - drawn), "dim")
    return bar


def _figures(card: Json) -> str:
    load = "" if card["utilisation"] is None else f"  {card['utilisation']} %"
    return f"{size(card['charged'])} of {size(card['capacity'])}, {size(card['free'])} free{load}"


def _styled(container: Json, now: datetime, hues: dict[str, str]) -> list[Text]:
    cells = [Text(printable(cell)) for cell in container_row(container, now)]
    cells[CONTAINER_HEADS.index("NAME")].stylize(hues[container["id"]])
    cells[CONTAINER_HEADS.index("STATE")].stylize(STATES.get(container["state"], ""))
    return cells


def _table(heads: tuple[str, ...], rows: list[list[Text]]) -> Table:
    made = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for head in heads:
        made.add_column(head.lstrip(">"), justify="right" if head.startswith(">") else "left", no_wrap=True)
    for row in rows:
        made.add_row(*row)
    return made
