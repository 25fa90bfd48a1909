"""Lines of the log to systemd's journal, with its own fields: `journalctl GPUSHARE_CONTAINER=train -o verbose`.

The protocol (https://systemd.io/JOURNAL_NATIVE_PROTOCOL) is a datagram of NAME=value lines; a value with more than one
line has its length before it, and what no datagram holds goes in a sealed memory file. That is the forty lines below.
python3-systemd has to be compiled against a libsystemd that the host need not have, and cysystemd brings one along as
a binary; both wait where journald does not read. Here nobody waits: a decision is worth more than a line about it.
"""

import array
import errno
import fcntl
import logging
import os
import socket
import struct
import sys
from contextlib import suppress

from web.logs.lines import Formed, Text

SOCKET = "/run/systemd/journal/socket"
WAITING_BYTES = 8 << 20  # that may wait for journald to read
LONGEST = 64 << 10  # bytes of a message, where there is no memory file for it
PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class Journal(logging.Handler):
    """Falls back to stderr, which systemd reads as well, where the journal's socket does not take a line."""

    def __init__(self, formed: Formed, otherwise: Text, address: str = SOCKET) -> None:
        super().__init__()
        self._formed, self._otherwise, self._address = formed, otherwise, address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, WAITING_BYTES)
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._send(record)
        except BlockingIOError:
            self._lost += 1
        except OSError:
            with suppress(OSError):
                print(self._otherwise.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)
        else:
            if self._lost:
                lost, self._lost = self._lost, 0
                text = f"{lost} lines before this one are lost: journald did not read them in time"
                self.emit(logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, None, None))

    def close(self) -> None:
        self._socket.close()
        super().close()

    def _packed(self, record: logging.LogRecord, longest: int | None = None) -> bytes:
        text = "\n".join([self._formed.message(record), *self._formed.traceback(record)])
        fields = {
            "MESSAGE": text if longest is None else text[:longest],
            "PRIORITY": next((str(priority) for least, priority in PRIORITIES if record.levelno >= least), "7"),
            "SYSLOG_IDENTIFIER": "gpushare",
            "LOGGER": record.name,
            "CODE_FILE": record.pathname,
            "CODE_LINE": str(record.lineno),
            "CODE_FUNC": record.funcName or "",
            "GPUSHARE_NODE": self._formed.node,
            **{f"GPUSHARE_{name.upper()}": value for name, value in self._formed.fields(record).items()},
        }
        return b"".join(_field(name, value.encode(errors="backslashreplace")) for name, value in fields.items())

    def _send(self, record: logging.LogRecord) -> None:
        data = self._packed(record)
        try:
            self._socket.sendto(data, self._address)
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                raise
            try:
                file = os.memfd_create("gpushare-log", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            except OSError:  # no descriptor is left: its beginning is better than nothing
                self._socket.sendto(self._packed(record, LONGEST), self._address)
                return
            try:
                self._send_in(file, data)
            finally:
                os.close(file)

    def _send_in(self, file: int, data: bytes) -> None:
        while data:
            data = data[os.write(file, data) :]
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, SEALS)
        passed = array.array("i", [file])
        self._socket.sendmsg([b""], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)], 0, self._address)


def _field(name: str, value: bytes) -> bytes:
    if b"\n" not in value:
        return b"%s=%s\n" % (name.encode(), value)
    return b"%s\n%s%s\n" % (name.encode(), struct.pack("<Q", len(value)), value)
