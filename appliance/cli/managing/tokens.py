"""`gpushare tokens` and `gpushare audit`: one's keys for programs; what people did."""

from typing import Annotated

import typer

from appliance.cli.client import Json
from appliance.cli.errors import Problem
from appliance.cli.options import connect
from appliance.cli.output import show
from appliance.cli.text import Columns, listed, time_of

DAY = 86400  # seconds
SHOWN = 50  # entries of the audit log, if no number is given


def tokens(
    create: Annotated[str | None, typer.Option(metavar="NAME", help="Create a token; it is printed once.")] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="With --create: it cannot change anything.")] = False,
    days: Annotated[
        int | None, typer.Option(metavar="DAYS", min=1, help="With --create: days until it expires.")
    ] = None,
    revoke: Annotated[int | None, typer.Option(metavar="ID", help="End a token.")] = None,
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
        show(client.send("POST", "tokens/", body), lambda made: str(made["key"]))
    elif revoke is not None:
        client.send("DELETE", ("tokens", str(revoke)))
        show({"id": revoke}, lambda done: "token {id}: ended".format(**done))
    else:
        found = list(client.each("tokens/", page_size=1000))
        columns: Columns = {
            ">ID": "id", "NAME": "name", "SCOPE": "scope", "CREATED": time_of("created_at", client.now()),
            "LAST USED": time_of("last_used_at", client.now()), "ENDS": time_of("expires_at", client.now()),
        }  # fmt: skip
        show(found, lambda them: listed(them, columns))


def audit(
    actor: Annotated[str | None, typer.Option(metavar="NAME", help="Only what this person did.")] = None,
    action: Annotated[
        str | None, typer.Option(metavar="ACTION", help="Only this action: kill, launch, sign-in, …")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Only entries about this target.")] = None,
    last: Annotated[int, typer.Option("-n", "--last", metavar="N", min=1, max=1000, help="Number of entries.")] = SHOWN,
) -> None:
    """Admins: print the audit log, newest first."""
    client = connect()
    given = {"actor": actor, "action": action, "name": name}
    asked = {key: value for key, value in given.items() if value is not None}
    found = client.get("audit/", page_size=last, **asked)["results"]
    when = time_of("at", client.now())
    columns: Columns = {"WHEN": when, "WHO": "actor", "FROM": "address", "WHAT": "action", "TO": _target}
    show(found, lambda them: listed(them, columns))


def _target(entry: Json) -> str:
    detail = entry["detail"] if isinstance(entry["detail"], dict) else {}
    return str(detail.get("name") or entry["subject"])
