"""HTTP between a browser and an application in a container: the heads are read and made to fit, everything else passes
as it is. `gpushare open` on a laptop and the door of the appliance (appliance/running/apps) both use it.

The browser knows the application by a name of its own, so that two applications share no cookies and it is a secure
context. The application is asked as http://localhost:PORT, which is what it believes to be: JupyterLab and others
refuse every other name. Gradio makes addresses of itself of X-Forwarded-Host, which says its name in the browser. What
a link elsewhere leads to looks typed to it, or ComfyUI would refuse whoever comes from the dashboard.

A page elsewhere that is open in the same browser may lead here, as a link does, and nothing else: many applications
(llama.cpp's server, MLflow) let every page read and change them.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Hashable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import h11

HEAD_LIMIT = 64 << 10  # bytes
CHUNK = 64 << 10
LABEL = 63  # characters of one part of a host name
AGAIN = "5"  # seconds, where there is no place just now
OURS = b"__host-http-gpushare"  # how cookies of the door begin, in small letters: no application sees or sets one
_DOMAIN = re.compile(rb"\s*domain\s*(=|$)", re.IGNORECASE)
# What a proxy says about the browser.
_OF_PROXIES = re.compile(rb"forwarded|x-forwarded-.*|x-real-ip")
# Answers that would reach beyond the name itself: one clears the cookies of the whole site, one moves the browser to
# another port of this host, the others have a proxy (nginx, Apache, lighttpd, LiteSpeed, Perlbal) answer with a file or
# an internal page of its own.
_BEYOND = re.compile(
    rb"clear-site-data|alt-svc|x-accel-redirect|x-sendfile.*|x-lighttpd-.*|x-litespeed-location|x-reproxy-.*"
)

_OWN_PAGE = (
    ("Cache-Control", "no-store"),
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
    ("X-Content-Type-Options", "nosniff"),
)
CLOSES_WITHIN = 5.0  # seconds in which what was written may still be read

Headers = Iterable[tuple[bytes, bytes]]


def label(name: str, key: str) -> str:
    """The first part of a host name that is this container's alone, without the port that follows. `key`: its id.

    Cookies know no ports, and a later container of the same name, or of one that looks alike here, is to have none of
    this one's.
    """
    end = f"-{key[:8]}"
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return (plain[: LABEL - len(f"{end}-65535")].rstrip("-") or "container") + end


class OwnAnswer(Exception):
    """Said to the browser in place of an answer of the application: `status` and `text`, which is shown to a person."""

    def __init__(self, status: int, text: str, headers: Iterable[tuple[str, str]] = ()) -> None:
        super().__init__(text)
        self.status, self.text, self.headers = status, text, tuple(headers)


class Far(Protocol):
    @property
    def has_ended(self) -> bool:
        """Whether the other side is known to have hung up."""

    async def read(self) -> bytes: ...
    async def write(self, data: bytes) -> None: ...
    async def close(self) -> None: ...


class Near:
    """A TCP connection, as `Far`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @property
    def has_ended(self) -> bool:
        return self._reader.at_eof()

    async def read(self) -> bytes:
        return await self._reader.read(CHUNK)

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def close(self) -> None:
        self._writer.close()
        try:
            async with asyncio.timeout(CLOSES_WITHIN):
                await self._writer.wait_closed()
        except TimeoutError:
            self._writer.transport.abort()


class Names:
    """`own` is where the browser finds it, `http://NAME-PORT.localhost:HERE`; `inner` is what it calls itself,
    `localhost:PORT`."""

    def __init__(self, own: str, inner: str) -> None:
        self.own, self.host, self.inner = own, own.partition("://")[2], inner
        self._own, self._inner = own.encode(), f"http://{inner}".encode()

    def asked(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        kept = [(name, self._inwards(name, value)) for name, value in headers if not _OF_PROXIES.fullmatch(name)]
        if not any(name == b"origin" for name, _ in kept):  # some would compare the two
            kept += [(b"X-Forwarded-Host", self.host.encode()), (b"X-Forwarded-Proto", self._own.partition(b":")[0])]
        return [(name, value) for name, value in kept if value or name != b"cookie"]

    def answered(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        return [(name, self._outwards(name, value)) for name, value in headers if _may_pass(name, value)]

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
            case b"sec-fetch-site" if value != b"same-origin":  # a link, or `require_own` had refused it
                return b"none"
            case b"cookie":
                return b";".join(each for each in value.split(b";") if not _is_ours(each)).strip()
            case _:
                return value


def _is_ours(cookie: bytes) -> bool:
    return cookie.strip(b" \t=").lower().startswith(OURS)  # without a name, some browsers take the value for one


def _may_pass(name: bytes, value: bytes) -> bool:
    return not _BEYOND.fullmatch(name.lower()) and not (name.lower() == b"set-cookie" and _is_ours(value))


def _moved(address: bytes, before: bytes, now: bytes) -> bytes:
    """With this beginning in place of that one, if that is its scheme, host and port."""
    rest = address.removeprefix(before)
    return now + rest if rest != address and rest[:1] in (b"", b"/", b"?", b"#") else address


@dataclass(frozen=True, slots=True)
class Way:
    """Where a request leads. A connection to the application serves all requests of one `key`, one after the other.
    `dial` raises OwnAnswer."""

    key: Hashable
    names: Names
    dial: Callable[[], Awaitable[Far]]


Route = Callable[[h11.Request], Awaitable[Way]]
"""Raises OwnAnswer."""
Show = Callable[[h11.Request | None, OwnAnswer], tuple[str, bytes]]
"""What kind of content says this to whoever has asked that, and the content."""


class Side:
    """One end: HTTP events over bytes."""

    def __init__(self, role: Any, stream: Far) -> None:
        self.http, self.stream = h11.Connection(role, max_incomplete_event_size=HEAD_LIMIT), stream

    async def next(self) -> Any:
        """Raises h11.RemoteProtocolError, ConnectionError."""
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(await self.stream.read())
        return event

    async def together(self) -> list[Any]:
        """The next event of an answer, and what came with it: a head and a short body are one write then. Raises
        h11.RemoteProtocolError, ConnectionError."""
        events = [await self.next()]
        with suppress(h11.RemoteProtocolError):  # it is raised again when what came before has been passed on
            while isinstance(events[-1], h11.Response | h11.Data):
                if (event := self.http.next_event()) is h11.NEED_DATA:
                    break
                events.append(event)
        return events

    async def send(self, event: Any) -> None:
        if data := self.http.send(event):
            await self.stream.write(data)

    async def close(self) -> None:
        with suppress(ConnectionError):
            await self.stream.close()

    @property
    def done(self) -> bool:
        """The exchange is over on both sides, and another may follow."""
        return bool(self.http.our_state is h11.DONE and self.http.their_state is h11.DONE)

    @property
    def switched(self) -> bool:
        return self.http.our_state is h11.SWITCHED_PROTOCOL


def plain(_: h11.Request | None, answer: OwnAnswer) -> tuple[str, bytes]:
    return "text/plain; charset=utf-8", f"{answer.text}\n".encode()


class Passing:
    """One connection of a browser. `waits` is entered while it has asked nothing."""

    def __init__(
        self,
        near: Far,
        route: Route,
        show: Show = plain,
        waits: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._browser = Side(h11.SERVER, near)
        self._route, self._show, self._waits = route, show, waits
        self._request: h11.Request | None = None
        self._application: Side | None = None
        self._way: Way | None = None  # that it was reached by

    async def serve(self) -> None:
        """Until the browser or the application ends it."""
        try:
            while await self._exchange_one():
                pass
        except OwnAnswer as answer:
            await self._answer(answer)
        except h11.RemoteProtocolError as error:
            await self._answer(OwnAnswer(400, f"This is not HTTP: {error}"))
        except (h11.LocalProtocolError, ConnectionError):
            pass  # the browser has gone
        finally:
            for side in filter(None, (self._application, self._browser)):
                await side.close()

    async def _exchange_one(self) -> bool:
        """Whether another may follow."""
        browser = self._browser
        with self._waits():
            request = await browser.next()
        if not isinstance(request, h11.Request):
            return False
        self._request = request
        way = await self._route(request)
        application = await self._reached(way)
        await _exchange(request, browser, application, way.names)
        if application.switched:
            await _join(browser, application)
        if not (browser.done and application.done):
            return False
        browser.http.start_next_cycle()
        application.http.start_next_cycle()
        return True

    async def _reached(self, way: Way) -> Side:
        """By the connection of before, unless that leads elsewhere or the application has hung up meanwhile."""
        kept = self._application
        if kept and (self._way is None or self._way.key != way.key or kept.stream.has_ended):
            self._application = None
            await kept.close()
        if self._application is None:
            self._application, self._way = Side(h11.CLIENT, await way.dial()), way
        return self._application

    async def _answer(self, answer: OwnAnswer) -> None:
        """In words of our own, if no answer has begun."""
        if self._browser.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        kind, body = self._show(self._request, answer)
        headers = [
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            *_OWN_PAGE,
            ("Connection", "close"),
            *([("Retry-After", AGAIN)] if answer.status in (429, 503) else []),
            *answer.headers,
        ]
        with suppress(h11.LocalProtocolError, ConnectionError):
            await self._browser.send(h11.Response(status_code=answer.status, headers=headers))
            if self._request is None or self._request.method != b"HEAD":
                await self._browser.send(h11.Data(data=body))
            await self._browser.send(h11.EndOfMessage())


def said(request: h11.Request) -> dict[str, str]:
    """Its headers; of several of one name the last."""
    return {name.decode("ascii"): value.decode("latin-1") for name, value in request.headers}


def is_link(headers: dict[str, str]) -> bool:
    """Whether a person goes there, by a link or by typing. Of a browser that does not say: if it wants a page."""
    if "sec-fetch-mode" not in headers:
        return "text/html" in headers.get("accept", "")
    return (headers["sec-fetch-mode"], headers.get("sec-fetch-dest")) == ("navigate", "document")


def require_own(request: h11.Request, names: Names) -> None:
    """Refuses a page elsewhere that has its own name lead to this machine, everybody who does not say the name, and
    what pages elsewhere ask for. Raises OwnAnswer."""
    headers = said(request)
    host = headers.get("host", "")
    if host.lower() != names.host:
        raise OwnAnswer(421, f"This is {names.own}/, and not {host or 'an address without a name'}.")
    origin = headers.get("origin", names.own)
    is_elsewhere = headers.get("sec-fetch-site") in ("cross-site", "same-site")
    if origin.lower() != names.own or (is_elsewhere and not is_link(headers)):
        text = f"A page of another site ({origin}) may not use this application. Open {names.own}/ itself."
        raise OwnAnswer(403, text)


async def _exchange(request: h11.Request, browser: Side, application: Side, names: Names) -> None:
    """One request and its answer; both pass at the same time. Raises OwnAnswer, ConnectionError."""
    asked = h11.Request(method=request.method, target=request.target, headers=names.asked(request.headers))
    asking = asyncio.create_task(_ask(asked, browser, application))
    answering = asyncio.create_task(_pass_answer(browser, application, names))
    try:
        await asyncio.wait({asking, answering}, return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            asking.result()
        await answering
    finally:
        for task in (asking, answering):
            task.cancel()  # an answer that came before the whole question ends the connection
        await asyncio.gather(asking, answering, return_exceptions=True)


async def _ask(asked: h11.Request, browser: Side, application: Side) -> NoReturn:
    """Raises ConnectionError once the browser has hung up, which nobody else would notice: an application may think for
    hours. What it asks ahead meanwhile is kept for its turn."""
    event: Any = asked
    while event is not h11.PAUSED:
        try:
            await application.send(event)
        except ConnectionError:
            await asyncio.Future()  # it does not listen any more: whoever reads its answer sees that
        if isinstance(event, h11.EndOfMessage):
            break
        event = await browser.next()
    ahead = 0
    while data := await browser.stream.read():
        browser.http.receive_data(data)
        ahead += len(data)
        if ahead > HEAD_LIMIT:
            await asyncio.Future()
    raise ConnectionResetError


async def _pass_answer(browser: Side, application: Side, names: Names) -> None:
    over = False
    while not over:
        try:
            events = await application.together()
        except (h11.RemoteProtocolError, ConnectionError) as error:
            raise OwnAnswer(502, f"The application's answer is not HTTP: {error}") from None
        said = b""
        for event in events:
            if isinstance(event, h11.ConnectionClosed):
                raise OwnAnswer(502, "The application closed the connection without an answer.")
            if isinstance(event, h11.Response | h11.InformationalResponse):
                headers = names.answered(event.headers)
                event = type(event)(status_code=event.status_code, reason=event.reason, headers=headers)
            said += browser.http.send(event) or b""
            if over := isinstance(event, h11.EndOfMessage) or browser.switched:
                break
        if said:
            await browser.stream.write(said)


async def _join(browser: Side, application: Side) -> None:
    """What follows an upgrade is not HTTP."""
    await application.stream.write(browser.http.trailing_data[0])
    await browser.stream.write(application.http.trailing_data[0])
    passing = [
        asyncio.create_task(_pass(one.stream, other.stream))
        for one, other in ((browser, application), (application, browser))
    ]
    try:
        await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in passing:
            task.cancel()
        await asyncio.gather(*passing, return_exceptions=True)


async def _pass(one: Far, other: Far) -> None:
    while data := await one.read():
        await other.write(data)
