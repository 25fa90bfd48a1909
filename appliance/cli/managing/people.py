"""`gpushare people`: accounts, their roles, and what is in force for each."""

import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from appliance.cli.client import Json
from appliance.cli.errors import Problem
from appliance.cli.managing.limits import limit_words
from appliance.cli.options import connect
from appliance.cli.output import show
from appliance.cli.text import clock, listed, table


class Role(StrEnum):
    VIEWER = "viewer"
    USER = "user"
    OPERATOR = "operator"
    ADMIN = "admin"


def people(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Default: all accounts.")] = None,
    create: Annotated[bool, typer.Option("--create", help="Create this account.")] = False,
    role: Annotated[Role | None, typer.Option(help="New role.")] = None,
    enable: Annotated[bool, typer.Option("--on", help="Enable the account.")] = False,
    disable: Annotated[bool, typer.Option("--off", help="Disable the account and end its tokens.")] = False,
    groups: Annotated[
        list[str] | None, typer.Option("--group", metavar="GROUP", help="All groups of the account; repeatable.")
    ] = None,
    email: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Address for mail.")] = None,
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read the password from standard input.")
    ] = False,
    no_password: Annotated[
        bool, typer.Option("--no-password", help="With --create: sign-in by the organisation's directory.")
    ] = False,
    shares: Annotated[int | None, typer.Option(metavar="N", help="Fair share beside others; 1 is usual.")] = None,
    share_group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="The group whose shares count, if several have any.")
    ] = None,
    boost: Annotated[
        int | None, typer.Option(metavar="N", help="Multiply the shares, with --until; 1 ends it.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="End of the boost: 2026-12-24.")] = None,
    forgive: Annotated[bool, typer.Option("--forgive", help="Set the past usage to zero.")] = False,
) -> None:
    """Admins: list, create, change and disable accounts."""
    said: dict[str, Any] = {
        "shares": shares,
        "share_group": share_group,
        "boost": boost,
        "boost_until": until,
        "forgive": forgive or None,
    }
    due = {field: value for field, value in said.items() if value is not None}
    if enable and disable:
        raise Problem("--on excludes --off", code="usage")
    on = True if enable else False if disable else None
    given: dict[str, Any] = {"role": role.value if role else None, "groups": groups, "email": email}
    asked = {field: value for field, value in given.items() if value is not None}
    if password_stdin:
        asked["password"] = sys.stdin.readline().rstrip("\n")
    if (asked or due or create or on is not None) and name is None:
        raise Problem("a NAME is missing", code="usage", hint="gpushare people NAME --role operator")
    if no_password and (not create or password_stdin):
        raise Problem("--no-password goes with --create, and not with --password-stdin", code="usage")
    if create and (on is not None or due):
        raise Problem("--create excludes --on, --off and the options for shares", code="usage")
    client = connect()
    if name is None:
        return show(list(client.each("people/", page_size=1000)), lambda them: _list(them))
    if create:
        body = {"username": name, **asked, **({"password": None} if no_password else {})}
        return show(client.send("POST", "people/", body), _created)
    if asked or on is not None:
        client.send("PATCH", ("people", name), asked if on is None else {**asked, "active": on})
    if due:
        client.send("PATCH", ("people", name, "shares"), due)
    return show(client.fetch_one("people", name), _one)


def _list(found: list[Json]) -> str:
    return listed(found, {
        "NAME": "username",
        "ROLE": lambda each: each["role"] if each["active"] else f"{each['role']} (disabled)",
        "GROUPS": lambda each: ", ".join(each["groups"]),
        "SIGNS IN": "signs_in",
        "LAST": lambda each: _when(each["last_sign_in"]),
    })  # fmt: skip


def _created(made: Json) -> str:
    secret = f"\npassword: {made['password']} (shown this once)" if made["password"] else ""
    return f"{made['username']} is created with the role {made['role']}{secret}"


def _one(one: Json) -> str:
    off = "" if one["active"] else ", disabled"
    groups = f", in {', '.join(one['groups'])}" if one["groups"] else ""
    why = one["sources"]
    rows = [(name, limit_words(name, value), why[name]["explanation"]) for name, value in one["limits"].items()]
    roots = ", ".join(one["volume_roots"]) or "named volumes only"
    fair = one["fair_share"]
    boost = f", times {fair['boost']} until {fair['boost_until']}" if fair["boost"] > 1 else ""
    return (
        f"{one['username']} ({one['role']}{off}{groups}); shares: {fair['shares']}{boost}; may mount: {roots}\n"
        + table(("LIMIT", "AT MOST", "SOURCE"), rows)
    )


def _when(text: str | None) -> str:
    from datetime import UTC, datetime

    return "-" if text is None else clock(text, datetime.now(UTC))
