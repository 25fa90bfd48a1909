"""The commands that only look: containers, queue, GPUs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from appliance.cli import options
from appliance.cli.client import Json
from appliance.cli.options import connect
from appliance.cli.output import show
from appliance.cli.rows import CONTAINER_HEADS, GPU_HEADS, QUEUE_HEADS, container_row, gpu_row, queue_row
from appliance.cli.text import table


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
    show(list(found), as_json, lambda them: _container_table(them, client.now()))


def _container_table(containers: list[Json], now: datetime) -> str:
    return table(CONTAINER_HEADS, [container_row(each, now) for each in containers])


def queue(as_json: options.Json = False) -> None:
    """Who waits for GPU memory, in order: for how much, since when, and why."""
    client = connect()
    show(list(client.each("queue/")), as_json, lambda waiting: _queue_table(waiting, client.now()))


def _queue_table(waiting: list[Json], now: datetime) -> str:
    rows = [queue_row(entry, now) for entry in waiting]
    return table(QUEUE_HEADS, rows) if rows else "Nobody waits for GPU memory."


def gpus(as_json: options.Json = False) -> None:
    """The cards: what they have, what is promised, what is in use."""
    cards = list(connect().each("gpus/"))
    show(cards, as_json, lambda cards: table(GPU_HEADS, [gpu_row(card) for card in cards]))


def top(
    once: Annotated[bool, typer.Option("--once", help="One look, then return.")] = False,
    interval: Annotated[float, typer.Option(min=0.2, metavar="SECONDS", help="Between two looks.")] = 1.0,
    as_json: options.Json = False,
) -> None:
    """GPUs, containers and the queue, live in the terminal. Ctrl-C returns."""
    from appliance.cli.top import watch

    watch(connect(), once=once, interval=interval, as_json=as_json)
