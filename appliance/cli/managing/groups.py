"""`gpushare groups`: who is in which."""

from typing import Annotated

import typer

from appliance.cli.client import Json
from appliance.cli.errors import Problem
from appliance.cli.managing.limits import limit_words
from appliance.cli.options import connect
from appliance.cli.output import show
from appliance.cli.text import listed


def groups(
    name: Annotated[str | None, typer.Argument(metavar="GROUP", help="Default: all groups.")] = None,
    create: Annotated[bool, typer.Option("--create", help="Create this group.")] = False,
    add: Annotated[list[str] | None, typer.Option("--add", metavar="NAME", help="Add a member; repeatable.")] = None,
    remove: Annotated[
        list[str] | None, typer.Option("--remove", metavar="NAME", help="Remove a member; repeatable.")
    ] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the group and its allowance; accounts stay.")
    ] = False,
    shares: Annotated[
        str | None, typer.Option(metavar="N|none", help="Fair share of all members together; none: no shares.")
    ] = None,
) -> None:
    """Admins: list and change groups and their members. The members of a role have that role."""
    if (create or add or remove or delete or shares) and name is None:
        raise Problem("a GROUP is missing", code="usage", hint="gpushare groups GROUP --add NAME")
    if delete and (create or add or remove or shares):
        raise Problem("--delete excludes other options", code="usage")
    client = connect()
    if name is None:
        show(list(client.each("groups/", page_size=1000)), _list)
        return
    if delete:
        client.send("DELETE", ("groups", name))
        show({"deleted": name}, lambda done: f"{done['deleted']}: deleted")
        return
    if create:
        client.send("POST", "groups/", {"name": name})
    if add or remove:
        client.send("POST", ("groups", name, "members"), {"add": add or [], "remove": remove or []})
    if shares is not None:
        client.send("PATCH", ("groups", name, "shares"), {"shares": shares_of(shares)})
    show(client.fetch_one("groups", name), lambda found: _list([found]))


def shares_of(text: str) -> int | None:
    try:
        return None if text == "none" else int(text)
    except ValueError:
        raise Problem(f"--shares {text} is not a number", code="usage", hint="write --shares 2, or none") from None


def _list(found: list[Json]) -> str:
    return listed(found, {
        "NAME": "name",
        "KIND": lambda each: "role" if each["role"] else "group",
        ">SHARES": "shares",
        ">GPU MEMORY": lambda each: limit_words("gpu_memory", (each["allowance"] or {}).get("gpu_memory")),
        "MEMBERS": lambda each: ", ".join(each["members"]),
    })  # fmt: skip
