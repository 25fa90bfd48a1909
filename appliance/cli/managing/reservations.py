"""`gpushare reserve`, `gpushare reservations`: GPU memory from one time to another."""

import os
from datetime import datetime
from typing import Annotated

import typer

from appliance.cli import cards
from appliance.cli.client import PAGE, Json
from appliance.cli.errors import Problem
from appliance.cli.managing.notices import local
from appliance.cli.options import connect
from appliance.cli.output import show
from appliance.cli.text import listed, seconds, size


def reserve(
    starts: Annotated[str, typer.Argument(metavar="TIME", help="Local begin: 2026-12-04T08:00; on the half hour.")],
    duration: Annotated[str, typer.Option("--for", metavar="TIME", help="How long: 90m, 4h.")] = "1h",
    gpu_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="On each GPU; default: all that it has.")
    ] = None,
    gpus: Annotated[str, typer.Option(metavar="N|device=0,1", help="How many, or which.")] = "1",
    node: Annotated[str | None, typer.Option(metavar="NODE", help="On this node.")] = None,
    user: Annotated[str | None, typer.Option(metavar="USER", help="Admins: for this person.")] = None,
    group: Annotated[str | None, typer.Option(metavar="GROUP", help="For all members of a group.")] = None,
    daily: Annotated[int | None, typer.Option(metavar="TIMES", help="Repeat daily: number of days.")] = None,
    weekly: Annotated[int | None, typer.Option(metavar="TIMES", help="Repeat weekly: number of weeks.")] = None,
    zone: Annotated[str | None, typer.Option(metavar="ZONE", help="Default: this machine's: Europe/Berlin.")] = None,
    end_others: Annotated[
        bool, typer.Option("--end-others", help="End containers that cannot be moved; default: begin with less.")
    ] = False,
    note: Annotated[str, typer.Option(metavar="TEXT", help="What it is for.")] = "",
) -> None:
    """Reserve GPU memory. Others may use it until the reservation begins. Containers may stay after its end."""
    if daily is not None and weekly is not None:
        raise Problem("--daily and --weekly exclude each other", code="usage")
    client = connect()
    times = daily or weekly or 1
    body: Json = {
        "user": user or "", "group": group or "", "gpu_memory": gpu_memory, "node": node or "", "starts": starts,
        "zone": zone or _zone(), "minutes": _minutes(duration), "times": times, "note": note,
        "repeat": "daily" if daily is not None else "weekly" if weekly is not None else "once",
        "if_short": "end" if end_others else "short",
    }  # fmt: skip
    if gpus.isdecimal():
        body["gpus"] = int(gpus)
    else:
        words = [word for word in gpus.removeprefix("device=").split(",") if word]
        body["gpus"] = [card["uuid"] for card in cards.chosen(client.each("gpus/", page_size=PAGE), words, node)]
    made = client.send("POST", "reservations/", body)
    show(made, lambda it: _list([it]))


def reservations(
    cancel: Annotated[int | None, typer.Option(metavar="ID", help="Cancel it, or end it if it has begun.")] = None,
) -> None:
    """List reservations that are not over, and cancel them."""
    client = connect()
    if cancel is not None:
        client.send("DELETE", ("reservations", str(cancel)))
        show({"ended": cancel}, lambda done: f"{done['ended']}: ended")
        return
    show(list(client.each("reservations/", page_size=PAGE)), _list)


def _minutes(text: str) -> int:
    try:
        return round(seconds(text) / 60)
    except ValueError as error:
        raise Problem(f"--for: {error}", code="usage") from None


def _zone() -> str:
    """The name of this machine's zone; REST keeps series by it over the change of clocks."""
    if name := os.environ.get("TZ", "").lstrip(":"):
        return name
    found = os.path.realpath("/etc/localtime").partition("/zoneinfo/")[2]
    if not found and datetime.now().astimezone().utcoffset():
        raise Problem("this machine's time zone has no name", code="usage", hint="name it: --zone Europe/Berlin")
    return found or "UTC"


def _list(found: list[Json]) -> str:
    if not found:
        return "No reservations."
    return listed(found, {
        ">ID": "id",
        "FOR": lambda each: each["user"] or f"group {each['group']}",
        ">MEMORY": lambda each: "all" if each["gpu_memory"] is None else size(each["gpu_memory"]),
        "GPUS": lambda each: ", ".join(f"{card['node']}/{card['index']}{_short(card)}" for card in each["gpus"]),
        "NEXT": lambda each: local(each["begins_at"]),
        "TO": lambda each: local(each["ends_at"]),
        "REPEAT": lambda each: "" if each["repeat"] == "once" else f"{each['repeat']}, {each['times']} times",
        "NOTE": "note",
    })  # fmt: skip


def _short(card: Json) -> str:
    return f" ({size(card['short'])} short)" if card["short"] else ""
