"""`gpushare tokens` and `gpushare audit`: one's keys for programs; what people did."""

from typing import Annotated, Any

import typer

from appliance.cli import options
from appliance.cli.client import Json
from appliance.cli.errors import Problem
from appliance.cli.options import connect
from appliance.cli.output import show
from appliance.cli.text import clock, table

DAY = 86400  # seconds
SHOWN = 50  # entries of the audit log, if no number is given


def tokens(
    create: Annotated[str | None, typer.Option(metavar="NAME", help="Create a token; it is printed once.")] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="With --create: it cannot change anything.")] = False,
    days: Annotated[
        int | None, typer.Option(metavar="DAYS", min=1, help="With --create: days until it expires.")
    ] = None,
    revoke: Annotated[int | None, typer.Option(metavar="ID", help="End a token.")] = None,
    as_json: options.Json = False,
) -> None:
    """List, create and end your tokens."""
    if (read_only or days is not None) and create is None:
        raise Problem("--read-only and --days go with --create NAME", code="usage")
    if create is not None and revoke is not None:
        raise Problem("--create excludes --revoke", code="usage")
    client = connect()
    if create is not None:
        body: Json = {"name": create, "scope": "read" if read_only else "write"}
        body |= {} if days is None else {"expires_in": days * DAY}
        show(client.send("POST", "tokens/", body), as_json, lambda made: str(made["key"]))
    elif revoke is not None:
        client.send("DELETE", ("tokens", str(revoke)))
        show({"id": revoke}, as_json, lambda done: "token {id}: ended".format(**done))
    else:
        found = list(client.each("tokens/", page_size=1000))
        show(found, as_json, lambda them: table(HEADS, [_row(each, client.now()) for each in them]))


HEADS = (">ID", "NAME", "SCOPE", "CREATED", "LAST USED", "ENDS")


def _row(token: Json, now: Any) -> tuple[str, ...]:
    times = (clock(token[each], now) if token[each] else "-" for each in ("created_at", "last_used_at", "expires_at"))
    return (str(token["id"]), token["name"], token["scope"], *times)


def audit(
    actor: Annotated[str | None, typer.Option(metavar="NAME", help="Only what this person did.")] = None,
    action: Annotated[
        str | None, typer.Option(metavar="ACTION", help="Only this action: kill, launch, sign-in, …")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Only entries about this target.")] = None,
    last: Annotated[int, typer.Option("-n", "--last", metavar="N", min=1, max=1000, help="Number of entries.")] = SHOWN,
    as_json: options.Json = False,
) -> None:
    """Admins: print the audit log, newest first."""
    client = connect()
    given = {"actor": actor, "action": action, "name": name}
    asked = {key: value for key, value in given.items() if value is not None}
    found = client.get("audit/", page_size=last, **asked)["results"]
    show(
        found,
        as_json,
        lambda them: table(("WHEN", "WHO", "FROM", "WHAT", "TO"), [_entry(it, client.now()) for it in them]),
    )


def _entry(entry: Json, now: Any) -> tuple[str, ...]:
    detail = entry["detail"] if isinstance(entry["detail"], dict) else {}
    target = str(detail.get("name") or entry["subject"] or "-")
    return (clock(entry["at"], now), entry["actor"] or "-", entry["address"] or "-", entry["action"], target)
