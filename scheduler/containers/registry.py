"""The containers that live, and what the engine sees of them: the start, pauses and the end of each.

Whatever the engine sees is what is so, whoever brought it about. Those who act on a container (launch.py, steering.py,
terminator.py) do it by the engine and then report what they have seen of it here, as the engine itself does.
"""

import logging
from collections.abc import Callable, Mapping

from scheduler.containers.removal import Removal
from scheduler.core.effects import Reason, Refused
from scheduler.core.events import ContainerAdded, ContainerKilled
from scheduler.engines.base import SIGKILLED, Condition, Status
from scheduler.engines.host_memory import HostMemory
from scheduler.sessions.live_containers import LiveContainer
from scheduler.shared import SharedParts
from web.errors import Problem
from web.logs import ById
from web.models import Container, Shortage
from web.models.states import NOT_STANDING

log = logging.getLogger(__name__)

STATUS = {Reason.INVALID: 400, Reason.OVER_CAPACITY: 400, Reason.UNKNOWN: 404}


class Containers:
    def __init__(
        self, shared: SharedParts, removal: Removal, memory: HostMemory, over: Callable[[str], None] = lambda id_: None
    ) -> None:
        """`over`: one has ended, or its launch was refused."""
        self.over = over
        self._engine, self._store, self._server = shared.engine, shared.store, shared.server
        self._broker, self._roster = shared.broker, shared.roster
        self._removal, self._memory = removal, memory
        self._strays: dict[str, LiveContainer] = {}  # they live, on GPUs that this host does not have any more

    def find(self, id_: str) -> LiveContainer | None:
        return self._broker.live_containers.get(id_) or self._strays.get(id_)

    def all(self) -> list[LiveContainer]:
        return [*self._broker.live_containers.values(), *self._strays.values()]

    def admit(self, row: Container, live: LiveContainer, *, running: bool = False) -> Refused | None:
        """Tells the broker and the core of it. Returns their refusal, or None."""
        self._store.clocks.begin(live.id)
        refused = self._roster.add(
            live,
            ContainerAdded(
                self._broker.now(),
                live.id,
                live.quota,
                owner=row.owner.get_username(),
                priority=row.priority,
                guaranteed=row.guaranteed,
                fail_fast=row.on_shortage == Shortage.FAIL,
                max_wait=row.max_wait_seconds,
                paused=live.is_held,
                preemptible=row.give_way,
                across=row.priority_across,
                running=running,
            ),
        )
        if refused and not running:
            self._store.clocks.forget(live.id)
        return refused

    def keep_stray(self, live: LiveContainer) -> None:
        """It gets no more memory, but can be seen and killed."""
        self._strays[live.id] = live

    async def reconcile(self) -> list[str]:
        """Compares what we know with what the engine knows; returns whom it knows. Raises EngineAway."""
        launched = [live for live in self.all() if live.engine_id]
        statuses = {status.id: status for status in await self._engine.statuses()}
        for status in self._engine.drain():  # how one ended that is gone by now
            self.apply_status(status)
        for live in launched:
            self.apply_status(statuses.get(live.id) or Status(live.id, live.engine_id, Condition.GONE))
        return list(statuses)

    def apply_status(self, status: Status) -> None:
        """By the engine, and only once: one that cannot be taken in waits for `reconcile`, and holds nobody up."""
        try:
            self.seen(status)
        except Exception:
            log.exception("what the engine shows of container %s cannot be taken in", ById(status.id))

    def seen(self, status: Status) -> None:
        live = self.find(status.id)
        if live is None or live.finished or live.called_off:
            return
        if live.started_at is None and status.condition is not Condition.GONE:
            self._started(live, status)
        if status.condition in (Condition.ENDED, Condition.GONE):
            self._ended(live, status)
        elif live.killed:
            pass  # it is stopped or thawed for its end, and perhaps by an earlier scheduler: neither pause nor resume
        elif status.condition is Condition.PAUSED and not live.paused:
            self._paused(live)
        elif status.condition is Condition.RUNNING and live.paused:
            self._resumed(live)

    def _started(self, live: LiveContainer, status: Status) -> None:
        live.engine_id = status.engine_id
        live.started_at = self._store.clocks.by(live.id, status.started_at)
        self._store.container(live.id, engine=self._engine.name, engine_id=live.engine_id, started_at=live.started_at)
        for gpu, quota in live.quota.items():
            self._store.event("started", live.id, gpu=gpu, size=quota)

    def _paused(self, live: LiveContainer) -> None:
        live.paused = True
        self._broker.update_paused(live)
        self._store.container(live.id, paused_at=self._store.clocks.now(live.id))
        self._store.event("paused", live.id)

    def _resumed(self, live: LiveContainer) -> None:
        live.paused = False
        self._broker.update_paused(live)
        self._store.container(live.id, paused_at=None)
        self._store.event("unpaused", live.id)

    def _ended(self, live: LiveContainer, status: Status) -> None:
        reason = live.reason or self._reason(live, status)
        self._broker.tell(ContainerKilled(self._broker.now(), live.id))
        # Nobody is charged for the time until a scheduler sees the end: it may have been away.
        now = self._store.clocks.now(live.id)
        at = min(max(self._store.clocks.by(live.id, status.finished_at), live.started_at or now), now)
        self._store.container(
            live.id,
            finished_at=at,
            exit_code=status.exit_code,
            **NOT_STANDING,
            reason=reason[:500],
            **({"removed_at": now} if status.condition is Condition.GONE else {}),
        )
        exit_code = "" if status.exit_code is None else f"exit code {status.exit_code}"
        self._store.event("ended", live.id, detail=reason or exit_code, at=at)
        self.forget(live)
        live.end.set()
        self.over(live.id)
        if live.remove_when_done and status.condition is Condition.ENDED:
            self._removal.begin(live.id, live.engine_id)

    def _reason(self, live: LiveContainer, status: Status) -> str:
        """Why it ended, where nobody here gave a reason: what the engine says, or what its exit code suggests."""
        if status.condition is Condition.GONE:
            return status.reason or "It was removed outside of this appliance."
        if live.killed or status.reason or status.exit_code != SIGKILLED:
            return status.reason
        if self._memory.may_have_ended_somebody():
            return "It was ended by a SIGKILL, probably by the kernel for lack of host memory."
        return "It was ended by a SIGKILL that this appliance did not send."

    def forget(self, live: LiveContainer) -> None:
        """It has ended, or was never started."""
        self._server.shut(live.id)
        self._roster.end(live)
        self._strays.pop(live.id, None)


def as_live_container(row: Container, quota: Mapping[str, int]) -> LiveContainer:
    """`quota`: bytes by GPU."""
    return LiveContainer(
        str(row.pk),
        row.name,
        dict(quota),
        row.owner.username,
        ttl=row.ttl_seconds,
        remove_when_done=row.remove_when_done,
        priority=row.priority,
        compute_weight=row.compute_weight,
        compute_limit=row.compute_limit,
        movable=row.movable,
    )


def as_problem(refused: Refused, field: str = "") -> Problem:
    if refused.reason is Reason.OVER_CAPACITY:
        field = "gpu_memory"
    return Problem(refused.reason.value, refused.explanation, STATUS.get(refused.reason, 409), field)
