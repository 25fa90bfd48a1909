"""What happened: the audit report, fair share, and how much memory images really took."""

import shlex
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import typer

from appliance.cli.client import Client, Json
from appliance.cli.errors import Problem
from appliance.cli.options import connect
from appliance.cli.output import show, write
from appliance.cli.text import Columns, day_or_time, listed, moment, size, span


class Group(StrEnum):
    USER = "user"
    GROUP = "group"
    CONTAINER = "container"
    IMAGE = "image"
    NAMESPACE = "namespace"
    NODE = "node"
    DAY = "day"


def report(
    start: Annotated[str, typer.Option("--from", metavar="TIME", help="2026-11-01, or how long ago: 7d.")] = "30d",
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Default: now.")] = None,
    group_by: Annotated[Group, typer.Option("--group-by", help="One line for each.")] = Group.USER,
    owner: Annotated[str | None, typer.Option(metavar="USER", help="Only containers of this user.")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV with exact figures.")] = False,
) -> None:
    """Report GPU memory, computing, waits and rejections."""
    client = connect()
    asked = {"from": _time("--from", start, client), "group_by": group_by.value}
    if end is not None:
        asked["to"] = _time("--to", end, client)
    if owner is not None:
        asked["owner"] = owner
    if not csv:
        return show(client.get("reports/allocations/", **asked), report_table)
    with client.stream("reports/allocations/", format="csv", **asked) as chunks:
        for chunk in chunks:
            write(chunk)
    return None


def _time(option: str, text: str, client: Client) -> str:
    try:
        return day_or_time(text, client.now())
    except ValueError as error:
        raise Problem(f"{option}: {error}", code="usage") from None


def report_table(found: Json) -> str:
    first, last = (moment(found[edge]).astimezone().strftime("%Y-%m-%d %H:%M") for edge in ("from", "to"))
    rows = listed((*found["rows"], found["total"]), {
        found["group_by"].upper(): "group",
        ">CONTAINERS": "containers",
        ">GIB·HOURS": _figure("vram_gib_hours", 2),
        ">GPU·HOURS": _figure("gpu_hours", 2),
        ">PEAK": lambda row: size(row["peak"]),
        ">SUSPENDED": lambda row: span(row["suspended_seconds"]),
        ">REJECTS": "rejects",
        ">COST": _figure("cost", 2),
    })  # fmt: skip
    return f"{first} to {last}\n{rows}"


def _figure(name: str, digits: int) -> Callable[[Json], str | None]:
    return lambda each: None if each[name] is None else f"{each[name]:.{digits}f}"


def fairness(
    start: Annotated[str, typer.Option("--from", metavar="TIME", help="2026-11-01, or how long ago: 1d.")] = "7d",
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Default: now.")] = None,
) -> None:
    """Show use against fair share, by person and group."""
    client = connect()
    asked = {"from": _time("--from", start, client), **({} if end is None else {"to": _time("--to", end, client)})}
    show(client.get("fairness/", **asked), fairness_table)


FAIRNESS: Columns = {
    ">USED GIB·H": _figure("had", 1),
    ">SHARE GIB·H": _figure("due", 1),
    ">RATIO": _figure("ratio", 2),
    ">USED GPU·H": _figure("gpu_had", 1),
    ">SHARE GPU·H": _figure("gpu_due", 1),
    ">WAIT": lambda each: each["wait_mean"] if each["wait_mean"] is None else span(each["wait_mean"]),
    ">P95": lambda each: each["wait_p95"] if each["wait_p95"] is None else span(each["wait_p95"]),
    ">CONTAINERS": "containers",
    ">HELD GIB·H": _figure("held", 1),
}


def fairness_table(found: Json) -> str:
    """Memory in GiB·hours. Beneath it why somebody is above."""
    if not found["people"]:
        return "No GPU memory was held in this time."
    parts = [listed(found["people"], {"PERSON": "name", **FAIRNESS})]
    if found["groups"]:
        parts.append(listed(found["groups"], {"GROUP": "name", **FAIRNESS}))
    parts += [f"{each['name']}: {each['why']}" for each in found["people"] if each["why"]]
    return "\n\n".join(parts)


def peak(
    image: Annotated[str | None, typer.Argument(metavar="IMAGE", help="Default: all images.")] = None,
    command: Annotated[list[str] | None, typer.Argument(metavar="COMMAND", help="Only runs of this command.")] = None,
) -> None:
    """Show the peak use of earlier runs, and suggest a quota."""
    asked = {} if image is None else {"image": image}
    if command:
        asked["command"] = shlex.join(command)
    show(list(connect().each("peaks/", **asked)), peak_table)


def peak_table(found: list[Json]) -> str:
    if not found:
        return "No finished run has used GPU memory yet."
    return listed(found, {
        "IMAGE": "image",
        "COMMAND": lambda each: "(any of yours)" if each["command"] is None else shlex.join(each["command"]),
        ">RUNS": "runs",
        ">REJECTED": "rejected_runs",
        ">PEAK": lambda each: size(each["peak"]),  # a dash: no run has shown what it needs
        ">SUGGESTED": lambda each: size(each["suggestion"]),  # or too few have
    })  # fmt: skip
