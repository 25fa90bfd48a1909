"""`gpushare allowances`: what persons and groups are given."""

from typing import Annotated, Any

import typer

from appliance.cli.client import Json
from appliance.cli.errors import Problem
from appliance.cli.managing.limits import NONE, limit_words, number, texts
from appliance.cli.options import connect
from appliance.cli.output import show
from appliance.cli.text import table

LIMITS = (
    "gpu_memory", "containers", "gib_hours", "priority_lowest", "priority_highest", "compute_weight",
    "compute_limit", "reservations", "reserved_gib_hours", "reserved_days", "images", "gpus",
)  # fmt: skip
NUMBERS: dict[str, type[int] | type[float]] = {
    "containers": int, "gib_hours": float, "priority_lowest": int, "priority_highest": int,
    "compute_weight": int, "compute_limit": int,
    "reservations": int, "reserved_gib_hours": float, "reserved_days": int,
}  # fmt: skip


def _limit(what: str, metavar: str = "N") -> Any:
    return typer.Option(metavar=f"{metavar}|none", help=what)


def allowances(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Account or group; default: all.")] = None,
    group: Annotated[bool, typer.Option("--group", help="NAME is a group or a role.")] = False,
    gpu_memory: Annotated[str | None, _limit("Sum of quotas: 40GiB.", "SIZE")] = None,
    containers: Annotated[str | None, _limit("Running containers.")] = None,
    gib_hours: Annotated[str | None, _limit("GiB × hours in seven days.")] = None,
    priority_lowest: Annotated[str | None, _limit("Lowest priority.")] = None,
    priority_highest: Annotated[str | None, _limit("Highest priority.")] = None,
    compute_weight: Annotated[str | None, _limit("Highest weight of one container.")] = None,
    compute_limit: Annotated[str | None, _limit("Highest limit of one container.", "PERCENT")] = None,
    reservations: Annotated[str | None, _limit("Reservations that are not over.")] = None,
    reserved_gib_hours: Annotated[str | None, _limit("GiB × hours reserved from now on.")] = None,
    reserved_days: Annotated[str | None, _limit("Days ahead that may be reserved.")] = None,
    images: Annotated[list[str] | None, _limit("Allowed images: lab/*; repeatable.", "PATTERN")] = None,
    gpus: Annotated[list[str] | None, _limit("Allowed GPUs; repeatable.", "INDEX|UUID")] = None,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Remove the allowance.")] = False,
) -> None:
    """Admins: list and change allowances of people and groups. Current limits: gpushare people NAME."""
    given = {field: value for field, value in context.params.items() if value is not None}
    spec: Json = {field: number(field, given[field], kind) for field, kind in NUMBERS.items() if field in given}
    spec |= {field: texts(words) for field, words in (("images", images), ("gpus", gpus)) if words}
    if gpu_memory is not None:
        spec["gpu_memory"] = None if gpu_memory == NONE else gpu_memory
    if (spec or withdraw or group) and name is None:
        raise Problem("a NAME is missing", code="usage", hint="gpushare allowances NAME --gpu-memory 40GiB")
    if spec and withdraw:
        raise Problem("--withdraw excludes other options", code="usage")
    client = connect()
    if name is None:
        show(list(client.each("allowances/", page_size=1000)), _table)
        return
    path = ("groups" if group else "people", name, "allowance")
    if withdraw:
        client.send("DELETE", path)
        show({"withdrawn": name}, lambda done: f"{done['withdrawn']}: allowance removed")
    else:
        answer = client.send("PATCH", path, spec) if spec else client.fetch_one(*path)
        show(answer, lambda one: _table([one]))


def _table(found: list[Json]) -> str:
    if not found:
        return "There are no allowances: no account is limited."
    heads = ("NAME", *(field.upper().replace("_", " ") for field in LIMITS))
    return table(heads, [
        (each["person"] or f"group {each['group']}", *(limit_words(field, each[field]) for field in LIMITS))
        for each in found
    ])  # fmt: skip
