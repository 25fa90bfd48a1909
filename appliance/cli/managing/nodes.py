"""`gpushare nodes`: the hosts of the appliance."""

from datetime import datetime
from typing import Annotated

import typer

from appliance.cli.client import PAGE, Json
from appliance.cli.errors import Problem
from appliance.cli.options import connect
from appliance.cli.output import show
from appliance.cli.text import age, listed, size


def nodes(
    name: Annotated[str | None, typer.Argument(metavar="NODE", help="Default: all hosts.")] = None,
    drain: Annotated[
        bool, typer.Option("--drain", help="Admins: take no new launches; containers keep running.")
    ] = False,
    undrain: Annotated[bool, typer.Option("--undrain", help="Admins: take launches again.")] = False,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="NAME=VALUE", help="Admins: set a label; NAME= removes it."),
    ] = None,
    invite: Annotated[
        bool, typer.Option("--invite", help="Admins: print the join command for a host of this name.")
    ] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Admins: remove a host that is away and empty.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="With --remove: also with containers, which count as lost.")
    ] = False,
) -> None:
    """List hosts: state, capacity, memory promised. Admins: add, drain, label and remove them."""
    if (drain or undrain or label or remove or invite) and name is None:
        raise Problem("a NODE is missing", code="usage", hint="gpushare nodes NODE --drain")
    if sum((drain, undrain, remove, invite)) > 1 or ((remove or invite) and label):
        raise Problem("--invite, --drain, --undrain and --remove exclude each other", code="usage")
    if force and not remove:
        raise Problem("--force is for --remove", code="usage", hint="gpushare nodes NODE --remove --force")
    client = connect()
    if name is None:
        show(list(client.each("nodes/", page_size=PAGE)), lambda found: _list(found, client.now()))
        return
    if invite:
        made = client.send("POST", "nodes/", {"name": name})
        show(made, lambda invitation: str(invitation["command"]))
        return
    if remove:
        client.send("DELETE", ("nodes", name), params={"force": "true"} if force else None)
        show({"removed": name}, lambda done: f"{done['removed']}: removed")
        return
    if label:
        client.send("PATCH", ("nodes", name), {"labels": dict(map(_label, label))})
    if drain or undrain:
        client.send("POST", ("nodes", name, "drain" if drain else "undrain"), {})
    show(client.fetch_one("nodes", name), lambda found: _list([found], client.now()))


def _label(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    if not equals:
        raise Problem(f"--label {text} is not NAME=VALUE", code="usage", hint=f"{text}= removes that label")
    return name, value or None


def _list(found: list[Json], now: datetime) -> str:
    return listed(found, {
        "NAME": "name",
        "STATE": lambda each: _state(each, now),
        ">GPUS": "gpus",
        ">CAPACITY": lambda each: size(each["capacity"]),
        ">PROMISED": lambda each: size(each["promised"]),
        "ENGINE": "engine",
        "POLICY": "policy",
        "RELEASE": "release",
        "LABELS": lambda each: ", ".join(f"{key}={value}" for key, value in sorted(each["labels"].items())),
    })  # fmt: skip


def _state(node: Json, now: datetime) -> str:
    """What stops it first."""
    words = []
    if not node["alive"]:
        words.append(f"away {age(node['seen_at'], now)}" if node["seen_at"] else "never seen")
    elif node["engine_error"]:
        words.append("engine away")
    if node["drained_at"]:
        words.append("drained")
    return ", ".join(words) or "alive"
