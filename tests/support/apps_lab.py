"""An application in a container, the door to it, and a browser: what tests of applications are made of."""

import asyncio
import json
import socket
from pathlib import Path

from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.test import Client

from appliance.running.apps import COOKIE, AppsDoor
from tests.support.apps import Scheduler
from tests.support.eventually import PATIENCE
from tests.support.machine import make_container
from tests.support.people import make_user
from web.models import Container

LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
OWN = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}
UPGRADE = {"Connection": "Upgrade", "Upgrade": "websocket"}


class Application:
    """Says what it was asked; at /silent it says nothing, at /half a part, at /endless more and more, at /upgrade it
    goes on in capitals."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self.open = 0  # connections

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                await self._answer(head, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1

    async def _answer(self, head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match head.split()[1]:
            case "/silent":
                await reader.read()
            case "/half":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Le")
                await reader.read()
            case "/cut":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
                writer.close()
            case "/garbled":
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nnine\r\n")
            case "/nonsense":
                writer.write(
                    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: nonsense\r\nConnection: Upgrade\r\n\r\n\0\xff"
                )
                writer.close()
            case "/endless":
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                while True:
                    writer.write(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
                    await writer.drain()
            case "/upgrade":
                writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
                while data := await reader.read(1 << 16):
                    writer.write(data.upper())
            case _:
                body = json.dumps(head).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


class Answer:
    def __init__(self, raw: bytes) -> None:
        head, _, body = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        self.status, self.body = int(first.split()[1]), body.decode()
        self.headers = [(name.lower(), value) for name, value in (line.split(": ", 1) for line in lines)]
        self.location = next((value for name, value in self.headers if name == "location"), "")
        cookies = [value.partition(";") for name, value in self.headers if name == "set-cookie"]
        self.cookies = dict(first.split("=", 1) for first, _, _ in cookies)
        self.attributes = {rest.strip() for _, _, rest in cookies}


class Lab:
    """A container of `owner`, and the door to it."""

    def __init__(self, home: Path) -> None:
        self.application = Application()
        self.scheduler = Scheduler(self.application)
        self._home = home
        self.door, self.address = AppsDoor(), "127.0.0.1"

    async def open(self) -> None:
        await self.scheduler.open(self._home)
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self._server = await self.door.open(listener)
        await sync_to_async(self._people)()

    def _people(self) -> None:
        self.owner = make_user("owner")
        self.container = make_container(self.owner, "lab")
        Container.objects.filter(pk=self.container.pk).update(app="8888/lab")
        self.host = f"lab-{str(self.container.pk)[:8]}-8888.lab-apps.example"

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.address, self.port)

    def asking(self, path: str, cookie: str = "", method: str = "GET", **headers: str) -> bytes:
        given = {"Host": self.host, **({"Cookie": cookie} if cookie else {}), **headers}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name.replace('_', '-')}: {value}" for name, value in given.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    async def ask(self, path: str, cookie: str = "", method: str = "GET", **headers: str) -> Answer:
        reader, writer = await self.connect()
        writer.write(self.asking(path, cookie, method, Connection="close", **headers))
        async with asyncio.timeout(PATIENCE):
            raw = await reader.read()
        writer.close()
        return Answer(raw)

    async def sent_back(self, user: User, path: str = "/lab?a=1") -> tuple[str, str]:
        """From the application to the dashboard: where that sends this user, and the cookie of their browser."""
        sent = await self.ask(path, **LINK)
        assert sent.status == 303
        return await self.at_the_dashboard(user, sent.location), "; ".join(f"{n}={v}" for n, v in sent.cookies.items())

    @sync_to_async
    def at_the_dashboard(self, user: User, location: str) -> str:
        assert location.startswith("https://gpu1.lab.example/apps/open/?")
        self.browser = Client()
        self.browser.force_login(user)
        page = self.browser.get(location.removeprefix("https://gpu1.lab.example"), secure=True)
        self.said = page.context.get("problem", "")
        return str(page.context.get("url", ""))

    async def enter(self, user: User) -> str:
        """The cookie that they have then."""
        there, browser = await self.sent_back(user)
        answer = await self.ask(there.removeprefix(f"https://{self.host}"), browser, **LINK)
        assert (answer.status, answer.location) == (303, f"https://{self.host}/lab?a=1")
        return f"{COOKIE}={answer.cookies[COOKIE]}"

    async def close(self) -> None:
        self._server.close()
        await self.scheduler.close()
