"""Static files, answered before Django sees the request.

Each is read and compressed once and then sent from memory: there are few, and small. A browser may keep them for good,
since their address carries a digest of all of them (settings.STATIC_URL): what one address leads to never changes.
"""

import asyncio
import gzip
import mimetypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.staticfiles import finders
from django.core.exceptions import SuspiciousFileOperation

from web.http.gate import Application, Receive, Send

_TEXT = ("text/", "application/javascript", "application/json", "image/svg+xml")


@dataclass(frozen=True, slots=True)
class File:
    kind: str
    plain: bytes
    packed: bytes | None  # gzip; None where that gains nothing


class StaticFiles:
    """An ASGI application: what lies under STATIC_URL is answered here, everything else by `app`."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._prefix = settings.STATIC_URL
        self._files: dict[str, File] = {}

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if not path.startswith(self._prefix):
            await self._app(scope, receive, send)
        elif scope["method"] not in ("GET", "HEAD"):
            await _answer(send, 405, [(b"allow", b"GET, HEAD")])
        elif (file := await self._find(path.removeprefix(self._prefix))) is None:
            await _answer(send, 404)
        else:
            body, headers = _represent(file, dict(scope["headers"]).get(b"accept-encoding", b""))
            await _answer(send, 200, headers, body, head=scope["method"] == "HEAD")

    async def _find(self, name: str) -> File | None:
        if name not in self._files and (file := await asyncio.to_thread(_read, name)) is not None:
            self._files[name] = file
        return self._files.get(name)


def _read(name: str) -> File | None:
    try:
        path = finders.find(name)
    except (SuspiciousFileOperation, ValueError):  # "..", a null byte: an address typed by hand
        return None
    if not path or not Path(path).is_file():
        return None
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    text = kind.startswith(_TEXT)
    plain = Path(path).read_bytes()
    return File(f"{kind}; charset=utf-8" if text else kind, plain, gzip.compress(plain, mtime=0) if text else None)


def _represent(file: File, accepted: bytes) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    headers = [
        (b"content-type", file.kind.encode()),
        (b"cache-control", b"public, max-age=31536000, immutable"),
        (b"x-content-type-options", b"nosniff"),
    ]
    if file.packed is None:
        return file.plain, headers
    headers.append((b"vary", b"accept-encoding"))
    if b"gzip" not in accepted:
        return file.plain, headers
    return file.packed, [*headers, (b"content-encoding", b"gzip")]


async def _answer(
    send: Send, status: int, headers: list[tuple[bytes, bytes]] | None = None, body: bytes = b"", head: bool = False
) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*(headers or []), length]})
    await send({"type": "http.response.body", "body": b"" if head else body})
