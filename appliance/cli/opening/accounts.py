"""Whose a connection to this machine's own 127.0.0.1 is: everybody with an account on a login node could come in."""

import os
import socket
import struct
from contextlib import suppress

TABLE = "/proc/net/tcp"  # Linux only
Address = tuple[str, int]


def is_ours(client: Address, here: Address) -> bool:
    """Whether the account that runs this, or root, has connected. True where the system does not say."""
    with suppress(OSError), open(TABLE) as table:
        wanted = f"{_shown(client)} {_shown(here)} "
        uid = next((int(line.split()[7]) for line in table if wanted in line), None)
        return uid in (None, 0, os.geteuid())
    return True


def _shown(address: Address) -> str:
    """As the kernel prints it: the address as a word in the processor's order."""
    (word,) = struct.unpack("=I", socket.inet_aton(address[0]))
    return f"{word:08X}:{address[1]:04X}"
