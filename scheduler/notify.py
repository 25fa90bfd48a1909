"""Telling systemd how we are, as sd_notify(3) does it: one datagram to the socket that it named. Else nothing."""

import os
import socket
from contextlib import suppress


def tell(state: str) -> None:
    """ "READY=1", "STOPPING=1", "WATCHDOG=1"; never fails, since nobody's work depends on it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as one:
        one.setblocking(False)
        one.sendto(state.encode(), address)


def watchdog() -> float | None:
    """Seconds within which systemd wants a sign of life; None if it does not."""
    given = os.environ.get("WATCHDOG_USEC", "")
    return int(given) / 1e6 if given.isdecimal() and int(given) else None
