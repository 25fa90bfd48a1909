"""`gpushare allowances`: what persons and groups are given."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from appliance.cli import options
from appliance.cli.client import Json
from appliance.cli.errors import Problem
from appliance.cli.managing.limits import NONE, limit_words, number, texts
from appliance.cli.options import connect
from appliance.cli.output import show
from appliance.cli.text import table

LIMITS = (
    "gpu_memory", "containers", "gib_hours", "priority_lowest", "priority_highest", "compute_weight",
    "compute_weights", "compute_limit", "images", "gpus",
)  # fmt: skip
OrNone = typer.Option(metavar="N|none", help="none: no limit.")


def allowances(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Whose; all if left out.")] = None,
    group: Annotated[bool, typer.Option("--group", help="NAME is a group's or a role's.")] = False,
    gpu_memory: Annotated[
        str | None, typer.Option("--gpu-memory", metavar="SIZE|none", help="Quotas at once: 40GiB.")
    ] = None,
    containers: Annotated[str | None, typer.Option(metavar="N|none", help="Containers at once.")] = None,
    gib_hours: Annotated[str | None, typer.Option(metavar="N|none", help="VRAM × hours in seven days.")] = None,
    priority_lowest: Annotated[str | None, OrNone] = None,
    priority_highest: Annotated[str | None, OrNone] = None,
    compute_weight: Annotated[str | None, typer.Option(metavar="N|none", help="The most, of each container.")] = None,
    compute_weights: Annotated[str | None, typer.Option(metavar="N|none", help="The sum, of all at once.")] = None,
    compute_limit: Annotated[str | None, typer.Option(metavar="PERCENT|none", help="The most, of each.")] = None,
    images: Annotated[list[str] | None, typer.Option(metavar="PATTERN|none", help="lab/*; several times.")] = None,
    gpus: Annotated[list[str] | None, typer.Option(metavar="INDEX|UUID|none", help="GPUs; several times.")] = None,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Take the whole allowance away.")] = False,
    as_json: options.Json = False,
) -> None:
    """Admins: what persons and groups are given. Current limits for somebody: gpushare people NAME."""
    spec: Json = {}
    if gpu_memory is not None:
        spec["gpu_memory"] = None if gpu_memory == NONE else gpu_memory
    for option, field, text, kind in (
        ("--containers", "containers", containers, int),
        ("--gib-hours", "gib_hours", gib_hours, float),
        ("--priority-lowest", "priority_lowest", priority_lowest, int),
        ("--priority-highest", "priority_highest", priority_highest, int),
        ("--compute-weight", "compute_weight", compute_weight, int),
        ("--compute-weights", "compute_weights", compute_weights, int),
        ("--compute-limit", "compute_limit", compute_limit and compute_limit.removesuffix("%"), int),
    ):
        if text is not None:
            spec[field] = number(option, text, kind)
    spec |= {field: texts(words) for field, words in (("images", images), ("gpus", gpus)) if words is not None}
    if (spec or withdraw or group) and name is None:
        raise Problem("a NAME is missing", code="usage", hint="gpushare allowances NAME --gpu-memory 40GiB")
    if spec and withdraw:
        raise Problem("--withdraw goes with nothing else", code="usage")
    client = connect()
    if name is None:
        show(list(client.each("allowances/", page_size=1000)), as_json, _table)
        return
    path = ("groups" if group else "people", name, "allowance")
    if withdraw:
        client.send("DELETE", path)
        show({"withdrawn": name}, as_json, lambda done: f"{done['withdrawn']}: the allowance is taken away")
    else:
        answer = client.send("PATCH", path, spec) if spec else client.fetch_one(*path)
        show(answer, as_json, lambda one: _table([one]))


def _table(found: list[Json]) -> str:
    if not found:
        return "Nobody has been given an allowance: nobody is limited."
    heads = ("WHOSE", *(field.upper().replace("_", " ") for field in LIMITS))
    return table(heads, [(_whose(each), *(limit_words(field, each[field]) for field in LIMITS)) for each in found])


def _whose(each: dict[str, Any]) -> str:
    return str(each["person"]) if each["person"] else f"group {each['group']}"
