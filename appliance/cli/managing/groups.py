"""`gpushare groups`: who is in which."""

from __future__ import annotations

from typing import Annotated

import typer

from appliance.cli import options
from appliance.cli.client import Json
from appliance.cli.errors import Problem
from appliance.cli.managing.limits import limit_words
from appliance.cli.options import connect
from appliance.cli.output import show
from appliance.cli.text import table


def groups(
    name: Annotated[str | None, typer.Argument(metavar="[GROUP]", help="One of them; all if left out.")] = None,
    create: Annotated[bool, typer.Option("--create", help="Make a group of this name.")] = False,
    add: Annotated[
        list[str] | None, typer.Option("--add", metavar="NAME", help="Put somebody in; may be given several times.")
    ] = None,
    remove: Annotated[list[str] | None, typer.Option("--remove", metavar="NAME", help="Take somebody out.")] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete it with its allowance; its members stay.")] = False,
    as_json: options.Json = False,
) -> None:
    """Admins: groups and their members; a role's members have that role."""
    if (create or add or remove or delete) and name is None:
        raise Problem("a GROUP is missing", code="usage", hint="gpushare groups GROUP --add NAME")
    if delete and (create or add or remove):
        raise Problem("--delete goes with nothing else", code="usage")
    client = connect()
    if name is None:
        show(list(client.each("groups/", page_size=1000)), as_json, _list)
        return
    if delete:
        client.send("DELETE", ("groups", name))
        show({"deleted": name}, as_json, lambda done: f"{done['deleted']}: deleted")
        return
    if create:
        client.send("POST", "groups/", {"name": name})
    if add or remove:
        client.send("POST", ("groups", name, "members"), {"add": add or [], "remove": remove or []})
    show(client.fetch_one("groups", name), as_json, lambda found: _list([found]))


def _list(found: list[Json]) -> str:
    rows = [
        (
            each["name"],
            "role" if each["role"] else "group",
            limit_words("gpu_memory", (each["allowance"] or {}).get("gpu_memory")),
            ", ".join(each["members"]) or "-",
        )
        for each in found
    ]
    return table(("NAME", "KIND", ">GPU MEMORY", "MEMBERS"), rows)
