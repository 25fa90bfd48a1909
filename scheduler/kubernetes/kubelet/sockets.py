"""Sockets for the kubelet, in folders of its own: there as long as we serve, and made anew if one was taken away."""

import itertools
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import grpc

log = logging.getLogger(__name__)

LONGEST_PATH = 107  # bytes of a UNIX socket's path (unix(7))
LOOKS_EVERY = 1.0  # seconds
MOST = 4 << 20  # bytes of one call, as gRPC's own limit: some ten thousand claims


class CannotServe(Exception):
    """The kubelet cannot reach us; the message says what to do."""


class Sockets:
    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._servers: dict[Path, _Bound] = {}

    def require_short(self, path: Path) -> None:
        """Raises CannotServe."""
        longest = os.fsencode(path.with_name(_name_of_new(path, 10**6)))
        if len(longest) > LONGEST_PATH:
            raise CannotServe(
                f"The path of a socket may have {LONGEST_PATH} bytes, and {path} has {len(longest)}: "
                "set GPUSHARE_KUBELET to where the kubelet's folder is mounted, by a shorter path."
            )

    async def see_to(self, path: Path, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """That we are heard there. Replaces what a killed driver has left, and what somebody took away."""
        bound = self._servers.get(path)
        if bound is not None and bound.is_there():
            return
        if bound is not None:
            log.warning("the socket %s was taken away; it is made again", path)
        new = path.with_name(_name_of_new(path, next(self._numbers)))
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", MOST)])
        server.add_generic_rpc_handlers(tuple(handlers))
        try:
            path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            server.add_insecure_port(f"unix://{new}")
            await server.start()
            new.chmod(0o600)
            new.rename(path)  # so that there never is one that nobody listens at
            self._servers[path] = _Bound(path, os.stat(path).st_ino, server)
        except (OSError, RuntimeError) as error:
            await server.stop(None)
            log.error("the kubelet does not find us, again in %.0f s: %s: %s", LOOKS_EVERY, path, error)
            return
        if bound is not None:
            await bound.server.stop(None)

    async def take_away(self, path: Path) -> None:
        if bound := self._servers.pop(path, None):
            bound.take_away()
            await bound.server.stop(None)


class _Bound(NamedTuple):
    path: Path
    inode: int
    server: Any

    def is_there(self) -> bool:
        try:
            return self.path.stat().st_ino == self.inode
        except OSError:
            return False

    def take_away(self) -> None:
        if self.is_there():
            self.path.unlink(missing_ok=True)


def _name_of_new(path: Path, number: int) -> str:
    return f".{path.stem[:4]}{number}"  # the kubelet passes over names that begin with a dot
