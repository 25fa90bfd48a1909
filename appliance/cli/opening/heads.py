"""HTTP between a browser and an application: the heads are read and made to fit, everything else passes as it is.

The browser knows the application by a name of its own, http://NAME-PORT.localhost:HERE, so that two applications share
no cookies and it is a secure context without a certificate. The application is asked as http://localhost:PORT, which is
what it believes to be: JupyterLab and others refuse every other name.

A page elsewhere that is open in the same browser may lead here, as a link does, and nothing else: many applications
(llama.cpp's server, MLflow) let every page read and change them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol

import h11

from appliance.cli.errors import Problem

HEAD_LIMIT = 64 << 10  # bytes
CHUNK = 64 << 10
_DOMAIN = re.compile(rb"\s*domain\s*(=|$)", re.IGNORECASE)
AGAIN = "5"  # seconds, where there is no place just now

Headers = Iterable[tuple[bytes, bytes]]


class Far(Protocol):
    async def read(self) -> bytes: ...
    async def write(self, data: bytes) -> None: ...
    async def close(self) -> None: ...


class Near:
    """The browser's connection, as `Far`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read(self) -> bytes:
        return await self._reader.read(CHUNK)

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


class Names:
    """`own` is what the browser calls it, `NAME-PORT.localhost:HERE`; `inner` is what it calls itself."""

    def __init__(self, own: str, inner: str) -> None:
        self.own, self.inner = own, inner
        self._own, self._inner = f"http://{own}".encode(), f"http://{inner}".encode()

    def asked(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        return [(name, self._inwards(name, value)) for name, value in headers]

    def answered(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        return [(name, self._outwards(name, value)) for name, value in headers]

    def _outwards(self, name: bytes, value: bytes) -> bytes:
        match name.lower():
            case b"location":
                return _moved(value, self._inner, self._own)
            case b"set-cookie":  # of this name alone, whatever a browser makes of Domain=localhost
                return b";".join(each for each in value.split(b";") if not _DOMAIN.match(each))
            case _:
                return value

    def _inwards(self, name: bytes, value: bytes) -> bytes:
        match name.lower():
            case b"host":
                return self.inner.encode()
            case b"origin" | b"referer":
                return _moved(value, self._own, self._inner)
            case _:
                return value


def _moved(address: bytes, before: bytes, now: bytes) -> bytes:
    """With this beginning in place of that one, if that is its scheme, host and port."""
    rest = address.removeprefix(before)
    return now + rest if rest != address and rest[:1] in (b"", b"/", b"?", b"#") else address


class Side:
    """One end: HTTP events over bytes."""

    def __init__(self, role: Any, stream: Far) -> None:
        self.http, self.stream = h11.Connection(role, max_incomplete_event_size=HEAD_LIMIT), stream

    async def next(self) -> Any:
        """Raises h11.RemoteProtocolError, ConnectionError."""
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(await self.stream.read())
        return event

    async def send(self, event: Any) -> None:
        if data := self.http.send(event):
            await self.stream.write(data)

    @property
    def done(self) -> bool:
        """The exchange is over on both sides, and another may follow."""
        return bool(self.http.our_state is h11.DONE and self.http.their_state is h11.DONE)

    @property
    def switched(self) -> bool:
        return self.http.our_state is h11.SWITCHED_PROTOCOL


async def serve(near: Far, dial: Callable[[], Awaitable[Far]], names: Names) -> None:
    """One connection of a browser, until it or the application ends it."""
    browser, application = Side(h11.SERVER, near), None
    try:
        while isinstance(request := await browser.next(), h11.Request):
            if refused := _refusal(request, names):
                await _answer(browser, *refused)
                return
            if application is None:
                application = Side(h11.CLIENT, await dial())
            await _exchange(request, browser, application, names)
            if application.switched:
                await _join(browser, application)
                return
            if not (browser.done and application.done):
                return
            browser.http.start_next_cycle()
            application.http.start_next_cycle()
    except Problem as problem:
        await _answer(browser, problem.status if problem.status in (429, 503) else 502, problem.line())
    except h11.RemoteProtocolError as error:
        await _answer(browser, 400 if application is None else 502, f"This is no HTTP: {error}")
    except (h11.LocalProtocolError, ConnectionError):
        pass  # one side has ended in the middle; the other one sees that
    finally:
        for side in filter(None, (application, browser)):
            with suppress(ConnectionError):
                await side.stream.close()


def _refusal(request: h11.Request, names: Names) -> tuple[int, str] | None:
    """Of a page elsewhere that has its own name lead to this machine, of everybody who does not say the name, and of
    what pages elsewhere ask for."""
    said = {name: value.decode("latin-1") for name, value in request.headers}
    host = said.get(b"host", "")
    if host.lower() != names.own:
        return 421, f"This is http://{names.own}/, and not {host or 'an address without a name'}."
    origin = said.get(b"origin", f"http://{names.own}")
    is_elsewhere = said.get(b"sec-fetch-site") in ("cross-site", "same-site")
    is_link = (said.get(b"sec-fetch-mode"), said.get(b"sec-fetch-dest")) == ("navigate", "document")
    if origin.lower() != f"http://{names.own}" or (is_elsewhere and not is_link):
        return 403, f"A page of another site ({origin}) may not use this application. Open http://{names.own}/ itself."
    return None


async def _exchange(request: h11.Request, browser: Side, application: Side, names: Names) -> None:
    """One request and its answer; both pass at the same time."""
    asked = h11.Request(method=request.method, target=request.target, headers=names.asked(request.headers))
    await application.send(asked)
    asking = asyncio.create_task(_pass_body(browser, application))
    try:
        while True:
            event = await application.next()
            if isinstance(event, h11.ConnectionClosed):
                raise h11.RemoteProtocolError("the application hung up")
            if isinstance(event, h11.Response | h11.InformationalResponse):
                event = type(event)(
                    status_code=event.status_code, reason=event.reason, headers=names.answered(event.headers)
                )
            await browser.send(event)
            if isinstance(event, h11.EndOfMessage) or browser.switched:
                return
    finally:
        asking.cancel()  # an answer that came before the whole question ends the connection
        await asyncio.gather(asking, return_exceptions=True)


async def _pass_body(browser: Side, application: Side) -> None:
    while not isinstance(event := await browser.next(), h11.ConnectionClosed) and event is not h11.PAUSED:
        await application.send(event)
        if isinstance(event, h11.EndOfMessage):
            return


async def _join(browser: Side, application: Side) -> None:
    """What follows an upgrade is not HTTP."""
    await application.stream.write(browser.http.trailing_data[0])
    await browser.stream.write(application.http.trailing_data[0])
    passing = [
        asyncio.create_task(_pass(one.stream, other.stream))
        for one, other in ((browser, application), (application, browser))
    ]
    await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
    for task in passing:
        task.cancel()
    await asyncio.gather(*passing, return_exceptions=True)


async def _pass(one: Far, other: Far) -> None:
    while data := await one.read():
        await other.write(data)


async def _answer(browser: Side, status: int, text: str) -> None:
    """In words of our own, if no answer has begun."""
    if browser.http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
        body = f"{text}\n".encode()
        headers = [
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
            *([("Retry-After", AGAIN)] if status in (429, 503) else []),
        ]
        with suppress(h11.LocalProtocolError, ConnectionError):
            await browser.send(h11.Response(status_code=status, headers=headers))
            await browser.send(h11.Data(data=body))
            await browser.send(h11.EndOfMessage())
