"""Launches that begin later: what waits, and `hold`, `release`, `cancel`, `edit` and `again`."""

from typing import Annotated

import typer

from appliance.cli.client import PAGE, UUID, Client, Json
from appliance.cli.errors import Problem
from appliance.cli.options import Note, connect
from appliance.cli.output import show, show_each
from appliance.cli.text import listed, seconds, size

Names = Annotated[list[str], typer.Argument(metavar="NAME", help="Names or ids of planned launches and sweeps.")]
FIELDS = ("queue", "after", "begin_at", "hold", "sweep", "at_once", "retries", "retry_pause")  # of a launch, REST's


def said(planned: Json) -> str:
    """Of one that was planned just now."""
    runs = f"{planned['count']} runs, {planned['at_once']} at once. " if planned["sweep"] else ""
    return f"{planned['name']}: planned. {runs}{planned['waits_for']}"


def list_planned(client: Client) -> None:
    show(list(client.each("planned/", page_size=PAGE)), _table)


def _table(found: list[Json]) -> str:
    if not found:
        return "No launch is planned."
    return listed(found, {
        ">#": "place",
        "NAME": "name",
        "OWNER": "owner",
        "NEEDS": lambda each: f"{each['gpu_count']} × " * (each["gpu_count"] > 1) + size(each["quota"]),
        "RUNS": lambda each: f"{each['ok'] + each['failed']}/{each['count']}" if each["sweep"] else "",
        "STATE": "state",
        "WAITS FOR": "waits_for",
    })  # fmt: skip


def hold(names: Names, why: Note = "") -> None:
    """Hold planned launches back. Runs that have started continue."""
    _act(names, "hold", note=why)


def release(names: Names, why: Note = "") -> None:
    """Release planned launches that are held."""
    _act(names, "release", note=why)


def cancel(names: Names, why: Note = "") -> None:
    """Cancel planned launches. Runs that have started continue; kill them to end them."""
    _act(names, "cancel", note=why)


def edit(
    names: Names,
    at_once: Annotated[int | None, typer.Option(metavar="N", help="Runs of a sweep at once.")] = None,
    priority: Annotated[int | None, typer.Option(help="New priority.")] = None,
    after: Annotated[
        list[str] | None, typer.Option(metavar="NAME[:ok|any|failed]|none", help="Begin after this; repeatable.")
    ] = None,
    begin_at: Annotated[str | None, typer.Option(metavar="TIME|none", help="Not before this time.")] = None,
    retries: Annotated[int | None, typer.Option(help="Further attempts of a run that fails.")] = None,
    retry_pause: Annotated[str | None, typer.Option(metavar="DURATION", help="Pause before each.")] = None,
) -> None:
    """Change planned launches, also while a sweep runs."""
    fields: Json = {"at_once": at_once, "priority": priority, "retries": retries}
    given = {field: value for field, value in fields.items() if value is not None}
    if after:
        given["after"] = [] if after == ["none"] else after
    if begin_at is not None:
        given["begin_at"] = None if begin_at == "none" else begin_at
    if retry_pause is not None:
        given["retry_pause"] = seconds(retry_pause)
    if not given:
        raise Problem("nothing to change", code="usage", hint="give --at-once N, --priority N, --after NAME, …")
    _act(names, "", **given)


def again(names: Names) -> None:
    """Plan ended launches again, with those that depended on them."""
    client = connect()
    for name in names:
        for made in client.send("POST", ("planned", _find(client, name, ended=True)["id"], "again")):
            show(made, said)


def _act(names: list[str], what: str, **body: object) -> None:
    client = connect()

    def act(name: str) -> Json:
        path = ("planned", _find(client, name)["id"], *([what] if what else []))
        done: Json = client.send("POST" if what else "PATCH", path, dict(body))
        return done

    show_each(names, act, lambda it: f"{it['name']}: {it['state']}. {it['waits_for']}".rstrip())


def _find(client: Client, word: str, *, ended: bool = False) -> Json:
    """By name, of the newest if several have it, or by id."""
    if UUID.fullmatch(word):
        return client.fetch_one("planned", word.lower())
    for open_ in ("false", "true") if ended else ("true",):
        named = client.get("planned/", name=word, open=open_, page_size=1)["results"]
        if named:
            return dict(named[0])
    raise Problem(
        f"no planned launch {word!r}", code="not_found", hint="gpushare queue --planned lists them", status=404
    )
