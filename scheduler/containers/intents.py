"""What is meant is durable before it is done, and what the engine alone knows is durable before it is removed.

A scheduler can be killed between any two steps, so every act on the world has three: what is meant is written, it is
done, and what came of it is written. Where what is meant stands, and until when:

    start                  the launch's command, then the claims on its GPUs (Promises.make)   the command's outcome
    pause, resume, quota   their command; for an idle holder one that the appliance writes     the command's outcome
    kill                   `kill_requested_at` and `reason` of the container                   `finished_at`
    removal                its command, or `remove_when_done`                                  `removed_at`

So there is no list of intents beside the records: an open command, or a row that says one thing and not yet the other,
is one. A new scheduler asks three: the rows (what is meant), the engine (what is so), the lease pages (what is held).
It never asks whether somebody had come to write that he was done. Every act can be done twice: commands are carried out
again, kills go on (terminator.py), what was to be removed is removed (garbage_collection.py), and the answer to a
command that an earlier scheduler had begun is the same as if it had lived.

It is a transaction and not a file of its own. A synced file would be faster (0.6 ms against 2 on a quiet machine of two
cores), but only a kill and a removal wait for it: a launch has its transaction anyway, the one
that makes its claims, and a second place could disagree with the first. While the database takes nothing, nothing is
begun.
"""

from scheduler.sessions.live_containers import LiveContainer
from scheduler.store import Store
from web.models import Command, Container


class Intents:
    def __init__(self, store: Store) -> None:
        self._store = store

    def kill(self, live: LiveContainer, reason: str) -> None:
        """From now on it is to end; the first reason stays. Nothing may be done about it before `durable`."""
        if not live.killed:
            live.killed, live.reason = True, reason
            self._store.container(live.id, kill_requested_at=self._store.clocks.now(live.id), reason=reason[:500])
            self._store.event("killed", live.id, detail=reason)

    async def pause(self, live: LiveContainer, note: str) -> None:
        """Has it paused by a command of the appliance's own, if it is idle still then. Raises DatabaseError."""
        await self._store.write(_pause, live.id, note)

    async def durable(self) -> None:
        """Returns once all that was recorded so far is in the database. Raises DatabaseError."""
        await self._store.durable()


def was_begun(command: Command, row: Container) -> bool:
    """Whether this kill has been written by an earlier scheduler: what has ended since has ended by it."""
    return command.taken_at is not None and row.kill_requested_at is not None


def was_called_off(row: Container) -> bool:
    """Whether its launch was to come to nothing, under an earlier scheduler."""
    return row.kill_requested_at is not None and row.started_at is None


def _pause(container: str, note: str) -> None:
    node = Container.objects.filter(pk=container).values_list("node", flat=True).first()
    asked = {"while_idle": True}
    Command.objects.create(kind=Command.Kind.PAUSE, container_id=container, node_id=node, note=note, arguments=asked)
