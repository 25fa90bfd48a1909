"""What both ends of a link have in common: its ssh, and how bytes pass."""

import asyncio
import hmac
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import asyncssh
from asyncssh.forward import SSHForwarder
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

logging.getLogger("asyncssh").setLevel(logging.WARNING)  # it would log each stream

WINDOW = 256 << 10  # bytes of a stream each way that nobody has taken
CHUNK = 64 << 10  # bytes of a message of the WebSocket
# Both ends. Who hears nothing asks after 4 s, and ends the link when it has asked twice without an answer.
SSH: dict[str, Any] = {
    "config": None, "keepalive_interval": 4, "keepalive_count_max": 2, "login_timeout": 10,
    "compression_algs": ["none"], "encryption_algs": ["aes128-gcm@openssh.com"], "gss_kex": False,
}  # fmt: skip


class Held(SSHForwarder):
    """The end of a forwarded connection that is no channel. asyncssh delivers what it has kept piece by piece, and for
    each lets the other side send more: so it is held up only after that, or it would keep more and more."""

    def __init__(self, free: Callable[[], None], *more: Any) -> None:
        """`free` is called when it has ended."""
        super().__init__(*more)
        self._free = free
        self._full = False

    def pause_writing(self) -> None:
        self._full = True
        asyncio.get_running_loop().call_soon(self._hold)

    def _hold(self) -> None:
        if self._full:
            super().pause_writing()

    def resume_writing(self) -> None:
        self._full = False
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._free()


def key_of_web(audit_key: bytes) -> asyncssh.SSHKey:
    """By which the node with this audit key knows the web side."""
    key = Ed25519PrivateKey.from_private_bytes(hmac.digest(audit_key, b"gpushare: the web side to a node", "sha256"))
    return asyncssh.import_private_key(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))


async def until_one_ends(*works: Coroutine[Any, Any, Any]) -> None:
    """The others are cancelled. Raises what it raises."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
