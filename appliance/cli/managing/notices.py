"""`gpushare notice`: what everybody is to know, and windows of maintenance."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

import typer

from appliance.cli import cards
from appliance.cli.client import PAGE, Json
from appliance.cli.errors import Problem
from appliance.cli.options import connect
from appliance.cli.output import show
from appliance.cli.text import listed


class Then(StrEnum):
    STAY = "stay"
    MOVE = "move"
    END = "end"


def notice(
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="Admins: announce this.")] = None,
    node: Annotated[str | None, typer.Option(metavar="NODE", help="About this node; default: all.")] = None,
    gpu: Annotated[str | None, typer.Option(metavar="GPU", help="About this GPU (number or UUID).")] = None,
    begins_at: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Maintenance: when it begins; nodes are drained then.")
    ] = None,
    ends_at: Annotated[str | None, typer.Option("--to", metavar="TIME", help="When it ends.")] = None,
    then: Annotated[
        Then, typer.Option(help="Containers when it begins: keep running, move to host memory, or end.")
    ] = Then.STAY,
    withdraw: Annotated[int | None, typer.Option(metavar="ID", help="Admins: withdraw a notice.")] = None,
) -> None:
    """List notices and maintenance. Admins: announce and withdraw them. TIME is local unless it names its zone."""
    client = connect()
    if withdraw is not None:
        client.send("DELETE", ("announcements", str(withdraw)))
        show({"withdrawn": withdraw}, lambda done: f"{done['withdrawn']}: withdrawn")
        return
    if text is None:
        if node or gpu or begins_at or ends_at:
            raise Problem("a TEXT is missing", code="usage", hint="gpushare notice 'New driver' --from … --to …")
        show(list(client.each("announcements/", page_size=PAGE)), _list)
        return
    card = cards.chosen(client.each("gpus/", page_size=PAGE), [gpu], node)[0]["uuid"] if gpu else ""
    asked = {"message": text, "node": "" if gpu else node or "", "gpu": card, "then": then.value}
    asked |= {"begins_at": begins_at and when(begins_at), "ends_at": ends_at and when(ends_at)}
    show(client.send("POST", "announcements/", asked), lambda made: f"{made['id']}: {made['said']}")


def when(text: str) -> str:
    """A time as REST takes it: one without a zone is this machine's."""
    try:
        return datetime.fromisoformat(text).astimezone().isoformat()
    except (ValueError, OverflowError):
        hint = "write it as 2026-12-04T08:00"
        raise Problem(f"{text!r} is not a time", code="usage", hint=hint) from None


def local(text: str | None) -> str:
    """A time of REST's where this machine is, with its zone."""
    return f"{datetime.fromisoformat(text).astimezone():%Y-%m-%d %H:%M %Z}" if text else ""


def _list(found: list[Json]) -> str:
    if not found:
        return "No notices."
    return listed(found, {
        ">ID": "id",
        "FROM": lambda each: local(each["begins_at"]),
        "TO": lambda each: local(each["ends_at"]),
        "ABOUT": lambda each: each["node"] or each["gpu"] or "all",
        "CONTAINERS": lambda each: each["then"] if each["begins_at"] else "",
        "NOTICE": "message",
    })  # fmt: skip
