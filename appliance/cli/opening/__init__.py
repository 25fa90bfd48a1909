"""`gpushare open`: an application in a container, in the browser of this machine.

Here is the command; listening.py listens here, tunnel.py is one connection into the container; appliance/heads.py
passes HTTP on.
"""

import contextlib
from typing import Annotated

import typer

from appliance.cli import options
from appliance.cli.output import show


def open_(
    container: options.Container,
    port: Annotated[
        int,
        typer.Argument(
            metavar="PORT", help="Default: its app's, or the only one that listens.", max=65535, show_default=False
        ),
    ] = 0,
    local_port: Annotated[
        int,
        typer.Option(metavar="PORT", help="Port on this machine; default: a free one.", max=65535, show_default=False),
    ] = 0,
    path: Annotated[str, typer.Option(metavar="PATH", help="Path to open, such as /lab?token=….")] = "/",
    browser: Annotated[bool, typer.Option(help="Open the browser, or only print the address.")] = True,
) -> None:
    """Open an application in a container in your browser. Ctrl-C ends it."""
    import asyncio  # the help of all commands does not wait for these

    from appliance.cli.opening.listening import Opened
    from appliance.heads import label

    client = options.connect()
    found = client.container(container)
    known, _, page = found.get("app", "").partition("/")
    if port in (0, int(known or 0)):
        port, path = int(known or 0), page if path == "/" else path

    def tell(address: str) -> None:
        show({"url": address}, lambda it: it["url"])

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(
            Opened(client, found, label(found["name"], found["id"]), browser=browser).run(port, local_port, path, tell)
        )
