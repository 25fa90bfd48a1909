"""`gpushare guests`: who may open a container's application."""

from typing import Annotated

import typer

from appliance.cli import options
from appliance.cli.options import connect
from appliance.cli.output import show


def guests(
    container: options.Container,
    add: Annotated[list[str] | None, typer.Option("--add", metavar="USER", help="Add a guest; repeatable.")] = None,
    remove: Annotated[
        list[str] | None, typer.Option("--remove", metavar="USER", help="Remove a guest; repeatable.")
    ] = None,
) -> None:
    """List and change who else may open a container's application."""
    client = connect()
    path = "containers", client.container(container)["id"], "guests"
    answer = client.fetch_one(*path)
    if add or remove:
        wanted = {*answer["guests"], *(add or ())} - {*(remove or ())}
        answer = client.send("PUT", path, {"guests": sorted(wanted)})
    show(answer, lambda found: "\n".join(found["guests"]) or "no guests")
