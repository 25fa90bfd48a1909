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
                await asyncio.to_thread(_seek_tail, file, tail, settings.GPUSHARE_BUDGETS.log_tail_bytes)
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


def _seek_tail(file: BinaryIO, lines: int, at_most: int) -> None:
    """Moves to where the last `lines` lines begin, but no further back than `at_most` bytes: there a line is cut."""
    position = end = file.seek(0, 2)
    start = max(0, end - at_most)
    wanted = lines
    while lines and position > start:
        size = min(_CHUNK, position - start)
        position -= size
        file.seek(position)
        block = file.read(size)
        newline = len(block)
        if position + size == end and block.endswith(b"\n"):
            newline -= 1  # that which ends the last line begins no other
        while (newline := block.rfind(b"\n", 0, newline)) >= 0:
            wanted -= 1
            if wanted == 0:
                file.seek(position + newline + 1)
                return
    file.seek(start if lines else end)
