"""What happened: the audit report, fair share, and how much memory images really took."""

import shlex
from enum import StrEnum
from typing import Annotated

import typer

from appliance.cli import options
from appliance.cli.client import Client, Json
from appliance.cli.errors import Problem
from appliance.cli.options import connect
from appliance.cli.output import show, write
from appliance.cli.text import day_or_time, moment, size, span, table


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
    as_json: options.Json = False,
) -> None:
    """Report GPU memory, computing, waits and rejections."""
    client = connect()
    asked = {"from": _time("--from", start, client), "group_by": group_by.value}
    if end is not None:
        asked["to"] = _time("--to", end, client)
    if owner is not None:
        asked["owner"] = owner
    if not csv:
        return show(client.get("reports/allocations/", **asked), as_json, report_table)
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
    heads = (
        found["group_by"].upper(),
        ">CONTAINERS",
        ">GIB·HOURS",
        ">GPU·HOURS",
        ">PEAK",
        ">SUSPENDED",
        ">REJECTS",
        ">COST",
    )
    rows = [_report_row(row) for row in (*found["rows"], found["total"])]
    return f"{first} to {last}\n{table(heads, rows)}"


def _report_row(row: Json) -> tuple[str, ...]:
    return (
        row["group"],
        str(row["containers"]),
        f"{row['vram_gib_hours']:.2f}",
        "-" if row["gpu_hours"] is None else f"{row['gpu_hours']:.2f}",
        size(row["peak"]),
        span(row["suspended_seconds"]),
        str(row["rejects"]),
        f"{row['cost']:.2f}",
    )


def fairness(
    start: Annotated[str, typer.Option("--from", metavar="TIME", help="2026-11-01, or how long ago: 1d.")] = "7d",
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Default: now.")] = None,
    as_json: options.Json = False,
) -> None:
    """Show use against fair share, by person and group."""
    client = connect()
    asked = {"from": _time("--from", start, client), **({} if end is None else {"to": _time("--to", end, client)})}
    show(client.get("fairness/", **asked), as_json, fairness_table)


FAIRNESS = (
    ">USED GIB·H",
    ">SHARE GIB·H",
    ">RATIO",
    ">USED GPU·H",
    ">SHARE GPU·H",
    ">WAIT",
    ">P95",
    ">CONTAINERS",
    ">HELD GIB·H",
)


def fairness_table(found: Json) -> str:
    """Memory in GiB·hours. Beneath it why somebody is above."""
    if not found["people"]:
        return "No GPU memory was held in this time."
    parts = [table(("PERSON", *FAIRNESS), [_fairness_row(each) for each in found["people"]])]
    if found["groups"]:
        parts.append(table(("GROUP", *FAIRNESS), [_fairness_row(each) for each in found["groups"]]))
    parts += [f"{each['name']}: {each['why']}" for each in found["people"] if each["why"]]
    return "\n\n".join(parts)


def _fairness_row(each: Json) -> tuple[str, ...]:
    return (
        each["name"],
        *(_figure(each[name], digits) for name, digits in (("had", 1), ("due", 1), ("ratio", 2))),
        *(_figure(each[name], 1) for name in ("gpu_had", "gpu_due")),
        *("-" if each[name] is None else span(each[name]) for name in ("wait_mean", "wait_p95")),
        str(each["containers"]),
        _figure(each["held"], 1),
    )


def _figure(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def peak(
    image: Annotated[str | None, typer.Argument(metavar="IMAGE", help="Default: all images.")] = None,
    command: Annotated[list[str] | None, typer.Argument(metavar="COMMAND", help="Only runs of this command.")] = None,
    as_json: options.Json = False,
) -> None:
    """Show the peak use of earlier runs, and suggest a quota."""
    asked = {} if image is None else {"image": image}
    if command:
        asked["command"] = shlex.join(command)
    show(list(connect().each("peaks/", **asked)), as_json, peak_table)


def peak_table(found: list[Json]) -> str:
    if not found:
        return "No finished run has used GPU memory yet."
    rows = [_peak_row(each) for each in found]
    return table(("IMAGE", "COMMAND", ">RUNS", ">REJECTED", ">PEAK", ">SUGGESTED"), rows)


def _peak_row(each: Json) -> tuple[str, ...]:
    """A dash where no run has shown what it needs, or too few have."""
    command = "(any of yours)" if each["command"] is None else shlex.join(each["command"])
    sizes = ["-" if each[name] is None else size(each[name]) for name in ("peak", "suggestion")]
    return (each["image"], command, str(each["runs"]), str(each["rejected_runs"]), *sizes)
