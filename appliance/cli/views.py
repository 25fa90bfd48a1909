"""The commands that only look: containers, queue, GPUs, reports, measured peaks."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from . import options
from .client import Json
from .options import connect
from .output import show
from .text import age, clock, ordinal, size, table


def ps(
    every: Annotated[bool, typer.Option("-a", "--all", help="Ended ones too.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Ids only.")] = False,
    as_json: options.Json = False,
) -> None:
    """List the containers that live."""
    client = connect()
    found = client.containers(every=every)
    if quiet:
        for container in found:
            print(container["id"])
        return
    show(list(found), as_json, lambda them: container_table(them, client.now()))


def container_table(containers: list[Json], now: datetime) -> str:
    return table(CONTAINER_HEADS, [container_row(each, now) for each in containers])


CONTAINER_HEADS = ("ID", "NAME", "OWNER", "IMAGE", "STATE", ">GPUS", ">USED", ">QUOTA", ">PEAK", "AGE")


def container_row(container: Json, now: datetime) -> tuple[str, ...]:
    held = container["gpus"]
    return (
        container["id"][:8],
        container["name"],
        container["owner"],
        container["image"],
        state_words(container, now),
        str(len(held)),
        size(sum(gpu["used"] for gpu in held)),
        size(sum(gpu["quota"] for gpu in held)),
        size(sum(gpu["peak"] for gpu in held)),
        age(container["created_at"], now),
    )


def state_words(container: Json, now: datetime) -> str:
    """The state, and what one would ask next: how long and at which place, or with which exit code."""
    state = container["state"]
    if state == "suspended":
        place = f", {ordinal(container['queue_position'])}" if container["queue_position"] else ""
        return f"suspended {age(container['suspended_since'], now)}{place}"
    if state == "running" and container["idle_since"]:
        return f"running, idle {age(container['idle_since'], now)}"
    if container["exit_code"] is not None and state != "exited":
        return f"{state} ({container['exit_code']})"
    return str(state)


def queue(as_json: options.Json = False) -> None:
    """Who waits for GPU memory, in order: for how much, since when, and why."""
    client = connect()
    show(list(client.each("queue/")), as_json, lambda waiting: queue_table(waiting, client.now()))


def queue_table(waiting: list[Json], now: datetime) -> str:
    rows = [queue_row(entry, now) for entry in waiting]
    return table(QUEUE_HEADS, rows) if rows else "Nobody waits for GPU memory."


QUEUE_HEADS = (">#", "NAME", "OWNER", ">NEEDS", "SINCE", "WHY")


def queue_row(entry: Json, now: datetime) -> tuple[str, ...]:
    since = entry["since"]
    when = f"{clock(since, now)} ({age(since, now)})"
    return (str(entry["position"] or "-"), entry["name"], entry["owner"], size(entry["bytes"]), when, entry["reason"])


def gpus(as_json: options.Json = False) -> None:
    """The cards: what they have, what is promised, what is in use."""
    cards = list(connect().each("gpus/"))
    show(cards, as_json, lambda cards: table(GPU_HEADS, [gpu_row(card) for card in cards]))


GPU_HEADS = (">#", "NAME", "UUID", ">CAPACITY", ">CHARGED", ">REAL", ">FOREIGN", ">LOAD")


def gpu_row(card: Json) -> tuple[str, ...]:
    load = "-" if card["utilisation"] is None else f"{card['utilisation']} %"
    figures = (size(card[figure]) for figure in ("capacity", "charged", "real", "foreign"))
    return (str(card["index"]), card["name"], card["uuid"], *figures, load)


def top(
    once: Annotated[bool, typer.Option("--once", help="One look, then return.")] = False,
    interval: Annotated[float, typer.Option(min=0.2, metavar="SECONDS", help="Between two looks.")] = 1.0,
    as_json: options.Json = False,
) -> None:
    """GPUs, containers and the queue, live in the terminal. Ctrl-C returns."""
    from .top import watch

    watch(connect(), once=once, interval=interval, as_json=as_json)
