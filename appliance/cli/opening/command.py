"""The command: listens on this machine, opens the browser, and passes connections on until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import webbrowser
from typing import Annotated

import typer

from appliance.cli import options
from appliance.cli.client import Client, Json
from appliance.cli.errors import Problem
from appliance.cli.opening.tunnel import Tunnel, dial
from appliance.cli.output import note

AGAIN = 0.5  # seconds until it is looked again whether the application listens
LABEL = 63  # characters of one part of a host name


def open_(
    container: options.Container,
    port: Annotated[
        int, typer.Argument(metavar="[PORT]", help="Default: the only port that listens.", max=65535)
    ] = 0,
    local_port: Annotated[
        int, typer.Option(metavar="PORT", help="Port on this machine; default: a free one.", max=65535)
    ] = 0,
    path: Annotated[str, typer.Option(metavar="PATH", help="Path to open, such as /lab?token=….")] = "/",
    browser: Annotated[bool, typer.Option(help="Open the browser, or only print the address.")] = True,
) -> None:  # fmt: skip
    """Open an application in a container in the browser of this machine: JupyterLab, TensorBoard, … Ctrl-C ends it."""
    client = options.connect()
    found = client.container(container)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_Opened(client, found, path, browser=browser).run(port, local_port))


class _Opened:
    def __init__(self, client: Client, container: Json, path: str, *, browser: bool) -> None:
        self._client, self._container, self._path, self._browser = (
            client,
            container,
            f"/{path.removeprefix('/')}",
            browser,
        )

    async def run(self, port: int, local_port: int) -> None:
        """Until Ctrl-C. Raises Problem."""
        first = await self._when_it_listens(port)
        await first.close()
        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        self._inner = first.port
        try:
            server = await asyncio.start_server(self._serve, "127.0.0.1", local_port)
        except OSError as error:
            raise Problem(
                f"port {local_port} of this machine cannot be used ({error.strerror})", code="usage"
            ) from None
        async with server:
            self._own = f"{label(self._container['name'])}-{first.port}.localhost:{server.sockets[0].getsockname()[1]}"
            address = f"http://{self._own}{self._path}"
            print(address, flush=True)
            if self._browser:
                await asyncio.to_thread(webbrowser.open, address)
            await stopped.wait()

    async def _when_it_listens(self, port: int) -> Tunnel:
        """Raises Problem, above all once the container has ended."""
        said = False
        while True:
            try:
                return await dial(self._client, self._container["id"], port)
            except Problem as problem:
                if problem.code != "nothing_listens":
                    raise
                if not said:
                    note(f"{problem.message.rstrip('.')}. Waiting for it")
                    said = True
            await asyncio.sleep(AGAIN)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from appliance.cli.opening.heads import Names, Near, serve

        names = Names(self._own, f"localhost:{self._inner}")
        await serve(Near(reader, writer), lambda: dial(self._client, self._container["id"], self._inner), names)


def label(name: str) -> str:
    """A container's name as the first part of a host name. It need not be another's: the port is."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[: LABEL - len("-65535")] or "container"
