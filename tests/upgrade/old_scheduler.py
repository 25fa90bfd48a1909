"""The scheduler's end of protocol version 2, as release 0.1.0 has it, in numbers: nothing here follows shim/*.h.

A shim that a later release builds meets it where somebody goes back to 0.1.0 while containers run. It must not be
changed with the protocol; it goes when that release is no longer served (docs/production.md).
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import struct
import threading
from pathlib import Path

FRAME = struct.Struct("=IHHIIQ")  # size, type, slot, serial, code, bytes
HELLO, WELCOME, REFUSED, NEED, GRANTED, REJECTED = 1, 2, 3, 4, 5, 6
VERSION, BAD_VERSION, OVER_QUOTA = 2, 1, 3
PAGE = 4096
MAGIC, SLOT = 0x4C535047, 128  # the first slot's place
TAKEN, QUOTA, UUID, GRANTED_SO_FAR, CONTEXT_SIZE = SLOT + 0, SLOT + 16, SLOT + 64, SLOT + 80, SLOT + 88
CONTEXT = 66 << 20


class OldScheduler:
    """One GPU, and a quota for each process. What a process asks for is granted at once, or rejected."""

    def __init__(self, folder: Path, uuid: bytes, quota: int) -> None:
        self.uuid, self.quota = uuid, quota
        self.path = folder / "old.sock"
        self.pages: list[mmap.mmap] = []
        self.hellos: list[int] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for page in self.pages:
            page.close()

    def used(self, page: mmap.mmap) -> int:
        """Version 2 counts what is used as taken + granted, modulo 2^64."""
        return (_word(page, TAKEN) + _word(page, GRANTED_SO_FAR)) % 2**64

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        size, kind, _, _, code, _ = FRAME.unpack(connection.recv(FRAME.size, socket.MSG_WAITALL))
        assert (size, kind) == (FRAME.size, HELLO)
        self.hellos.append(code)
        if code != VERSION:
            connection.sendall(FRAME.pack(FRAME.size, REFUSED, 0, 0, BAD_VERSION, 0))
            return
        descriptor, page = self._new_page()
        socket.send_fds(connection, [FRAME.pack(FRAME.size, WELCOME, 0, 0, 0, 0)], [descriptor])
        os.close(descriptor)
        while len(data := connection.recv(FRAME.size, socket.MSG_WAITALL)) == FRAME.size:
            _, kind, slot, serial, _, wanted = FRAME.unpack(data)
            if kind != NEED:
                continue
            if self.used(page) + wanted > self.quota:
                connection.sendall(FRAME.pack(FRAME.size, REJECTED, slot, serial, OVER_QUOTA, 0))
            else:
                _set(page, GRANTED_SO_FAR, _word(page, GRANTED_SO_FAR) + wanted)
                connection.sendall(FRAME.pack(FRAME.size, GRANTED, slot, serial, 0, wanted))

    def _new_page(self) -> tuple[int, mmap.mmap]:
        descriptor = os.memfd_create("gpushare-lease", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, PAGE)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        page = mmap.mmap(descriptor, PAGE)
        struct.pack_into("=IHH", page, 0, MAGIC, VERSION, 1)
        page[UUID : UUID + 16] = self.uuid
        _set(page, QUOTA, self.quota)
        _set(page, CONTEXT_SIZE, CONTEXT)
        self.pages.append(page)
        return descriptor, page


def _word(page: mmap.mmap, place: int) -> int:
    (word,) = struct.unpack_from("=Q", page, place)
    return int(word)


def _set(page: mmap.mmap, place: int, value: int) -> None:
    struct.pack_into("=Q", page, place, value)
