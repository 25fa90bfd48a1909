"""A UNIX socket in the container (`ssh -L …:/path`): a program of ours that runs inside connects to it.

So it is reached as the container's user, and a path leads where it leads in the container, never out of it.
"""

import asyncio
from contextlib import suppress

import asyncssh
from asyncssh import SSHUNIXSession

from web.budgets import Place
from web.console.frames import BadFrame
from web.door.programs import START_SFTP, Piped, ended, places
from web.door.streams import start
from web.door.visit import Visit
from web.errors import Problem
from web.spec.requests import ExecSpec

SAID = 500  # bytes of why it is not reached


class Socket(Piped, SSHUNIXSession[bytes]):
    """One connection to it."""

    def __init__(self, visit: Visit) -> None:
        super().__init__(visit)
        self._reached = asyncio.get_running_loop().create_future()
        self._said = b""

    async def reach(self, path: str) -> None:
        """Raises ChannelOpenError."""
        try:
            program = ExecSpec.parse({"command": [*START_SFTP, path], "interactive": True, "tty": False})
            place = places.require(self._visit.user.pk, "programs by ssh and consoles are open")
            self._keep(self._run(program, place))
            await self._reached
        except asyncio.CancelledError:
            self.connection_lost(None)
            raise
        except Problem as problem:
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, problem.message) from None

    async def _run(self, program: dict[str, object], place: Place) -> None:
        try:
            streams = await start(self._visit.container, program)
            try:
                await self._pass(streams)
            finally:
                await ended(streams)
        except (Problem, BadFrame) as error:
            self._said = str(error).encode()
        finally:
            place.free()
            if not self._reached.done():  # of one that is cancelled nobody asks
                self._reached.set_exception(Problem("not_reached", self._said.decode(errors="replace").strip(), 409))
            else:
                await self._room.wait()  # who hangs up at once may do so before the channel is there
                if self._channel is not None:
                    with suppress(OSError):  # they have gone
                        self._channel.write_eof()
                        self._channel.close()

    async def _show(self, errors: bool, data: bytes) -> None:
        if errors:
            self._said = (self._said + data)[:SAID]
            return
        if not self._reached.done():
            self._reached.set_result(None)
            data = data[1:]
        if data:
            await super()._show(errors, data)
