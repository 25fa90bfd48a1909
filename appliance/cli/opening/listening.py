"""Listens on this machine, opens the browser, and passes connections on."""

import asyncio
import signal
import webbrowser
from collections.abc import Callable

import h11

from appliance.cli.client import Client, Json
from appliance.cli.errors import Problem
from appliance.cli.opening.accounts import is_ours
from appliance.cli.opening.tunnel import Tunnel, dial
from appliance.cli.output import note
from appliance.heads import Names, Near, OwnAnswer, Passing, Way, require_own

AGAIN = 0.5  # seconds until it is looked again whether the application listens


class Opened:
    """`name`: the first part of the host names that lead to it here."""

    def __init__(self, client: Client, container: Json, name: str, *, browser: bool) -> None:
        self._client, self._container, self._name, self._browser = client, container, name, browser

    async def run(self, port: int, local_port: int, path: str, tell: Callable[[str], None]) -> None:
        """Until Ctrl-C. `tell` is called with the address. Raises Problem."""
        first = await self._when_it_listens(port)
        await first.close()
        self._inner = first.port
        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        try:
            server = await asyncio.start_server(self._serve, "127.0.0.1", local_port)
        except OSError as error:
            what = f"port {local_port} of this machine cannot be used ({error.strerror})"
            raise Problem(what, code="usage") from None
        async with server:
            self._own = f"{self._name}-{first.port}.localhost:{server.sockets[0].getsockname()[1]}"
            address = f"http://{self._own}/{path.removeprefix('/')}"
            tell(address)
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
        if not is_ours(writer.get_extra_info("peername"), writer.get_extra_info("sockname")):
            writer.close()
            return
        await Passing(Near(reader, writer), self._route).serve()

    async def _route(self, request: h11.Request) -> Way:
        names = Names(f"http://{self._own}", f"localhost:{self._inner}")
        require_own(request, names)
        return Way(self._inner, names, self._dial)

    async def _dial(self) -> Tunnel:
        try:
            return await dial(self._client, self._container["id"], self._inner)
        except Problem as problem:
            status = problem.status if problem.status in (429, 503) else 502
            raise OwnAnswer(status, problem.line()) from None
