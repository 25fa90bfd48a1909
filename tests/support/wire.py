"""How many bytes really pass between a browser and a server, and of what kind they are.

    with counted(site.url) as wire:
        load(fresh(context, wire, cookie), wire)  → Counter(Script=…, Document=…, Live=…)

What a browser says of itself leaves out WebSockets, of which it knows only the length after decompression: so a
forwarder stands in between and counts all, and what is no request's is the live line's.
"""

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

from playwright.sync_api import BrowserContext, Page

from tests.support.eventually import PATIENCE, until


class Wire:
    """`url` leads to the server; `received` is what came back from there, in bytes, heads and all."""

    def __init__(self, server: str) -> None:
        self._port = int(server.rpartition(":")[2])
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._serve()], daemon=True)
        self.received = 0
        self.url = ""

    def open(self) -> None:
        self._thread.start()
        self._ready.wait(60)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(PATIENCE)
        self._loop.close()

    async def _serve(self) -> None:
        self._over = asyncio.Event()
        server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._over.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, there = await asyncio.open_connection("127.0.0.1", self._port)
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):  # at the end, or the server tells of it
            await asyncio.gather(self._pass_on(reader, there), self._pass_on(back, writer, count=True))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: bool = False) -> None:
        try:
            while data := await reader.read(1 << 16):
                self.received += len(data) * count
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()


@contextlib.contextmanager
def counted(server: str) -> Iterator[Wire]:
    wire = Wire(server)
    wire.open()
    try:
        yield wire
    finally:
        wire.close()


def load(page: Page, wire: Wire) -> Counter[str]:
    """Opens the overview and waits until all of it is there: bytes over the wire by kind ("Script", …), heads too."""
    of: dict[str, str] = {}
    kinds, finished = Counter[str](), Counter[str]()
    before = wire.received
    session = page.context.new_cdp_session(page)

    def ended(said: dict[str, Any]) -> None:
        kind = of.get(said["requestId"], "Other")
        kinds[kind] += int(said["encodedDataLength"])
        finished[kind] += 1

    session.on("Network.responseReceived", lambda said: of.update({said["requestId"]: said["type"]}))
    session.on("Network.loadingFinished", ended)
    session.send("Network.enable")
    page.goto(wire.url)
    page.locator('#connection[data-state="live"]').wait_for()
    page.wait_for_load_state("networkidle")
    # The cards are drawn in a later frame, and each then fetches its last hour: that may be after "networkidle".
    cards = page.locator("#gpus .card")
    until(lambda: 0 < cards.count() == finished["Fetch"])
    session.detach()
    kinds["Live"] = wire.received - before - kinds.total()
    return kinds


def fresh(context: BrowserContext, wire: Wire, cookie: dict[str, str]) -> Page:
    """A page of somebody who is signed in there."""
    context.add_cookies([cookie | {"url": wire.url}])  # type: ignore[list-item]
    page = context.new_page()
    page.set_default_timeout(1000 * PATIENCE)
    return page
