"""A container's output, as the engine wrote it to GPUSHARE_HOME/logs/<id>.log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

from django.conf import settings

from web.models import Container

_CHUNK = 64 * 1024


def path_of(container: UUID) -> Path:
    return Path(settings.GPUSHARE_HOME) / "logs" / f"{container}.log"


async def stream(container: UUID, *, follow: bool, tail: int | None = None) -> AsyncIterator[bytes]:
    """What is there; with `follow`, also what comes, until the container has ended."""
    file: BinaryIO | None = None
    try:
        while True:
            # Asked before reading: whatever was written before the end is then read in this round or the next.
            ended = not await Container.objects.live().filter(pk=container).aexists()
            if file is None and (file := _open(container)) is not None and tail is not None:
                _seek_tail(file, tail)
            while file is not None and (chunk := file.read(_CHUNK)):
                yield chunk
            if ended or not follow:
                return
            await asyncio.sleep(0.2)
    finally:
        if file is not None:
            file.close()


def _open(container: UUID) -> BinaryIO | None:
    try:
        return path_of(container).open("rb")
    except FileNotFoundError:
        return None


def _seek_tail(file: BinaryIO, lines: int) -> None:
    """Moves to where the last `lines` lines begin, reading backwards in blocks."""
    position = end = file.seek(0, 2)
    wanted = lines
    while position > 0 and lines > 0:
        size = min(_CHUNK, position)
        position -= size
        file.seek(position)
        block = file.read(size)
        if position + size == end and block.endswith(b"\n"):
            wanted += 1  # the newline that ends the last line begins no other
        for offset in range(len(block) - 1, -1, -1):
            if block[offset : offset + 1] == b"\n":
                wanted -= 1
                if wanted == 0:
                    file.seek(position + offset + 1)
                    return
    file.seek(0 if lines > 0 else end)
