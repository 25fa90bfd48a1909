"""What Docker shows of our containers: looked at on every event, and all of them regularly.

What is reported of a container is always what an inspection shows *now*; an event, the regular comparison with
Docker's list and our own calls are each but a reason to look. Looks at one container are made one after the other, so
reports of it are in order even where events are not; one that Docker is slow about holds up no other's. Labels say
which containers are ours: nothing is remembered across a restart.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import docker.errors

from scheduler import clock
from scheduler.engines import kernel_log
from scheduler.engines.base import SIGKILLED, Condition, EngineAway, EngineError, Status
from scheduler.engines.changes import Changes
from scheduler.engines.docker import options
from scheduler.engines.docker.client import HEAD_START, Client
from scheduler.engines.docker.events import EventFollower
from scheduler.engines.docker.logs import LINES_A_SECOND_IN_ALL, InAll, LogCopier, parse_stamp
from scheduler.engines.docker.mounting.runs import Mounted, about, folder_of, terminal, volumes_of
from scheduler.engines.docker.shared_cgroup import SharedCgroup
from scheduler.engines.kernel_log import OomKill

log = logging.getLogger(__name__)

LOOK_AGAIN = 1.5  # seconds; what no event reported is seen by then
AT_ONCE = 8  # looks that nobody asked for; the other half of Docker's threads (client.py) is for who did
REASON_WITHIN, LOOKS_FOR_REASON = 0.5, 5  # seconds, and looks in that time
COPIED_WITHIN = 30.0  # seconds that a removal waits for the output to be copied
NOT_COPIED = "Its output is still being copied, and Docker's removal would end that. Try again in a moment."
LAST_WORDS = 0.5  # seconds; an end is reported after its output is copied, but no later than this
ENGINE_ID = re.compile(r"[0-9a-f]{64}")  # no name and no part of an id: Docker would find what it means now
NEVER = "0001-01-01T00:00:00Z"
LEFTOVERS = ("created", "dead")  # states that only a launch or a removal leaves that was cut short
CONDITIONS = {"running": Condition.RUNNING, "paused": Condition.PAUSED}  # all else has ended


class Watch:
    def __init__(self, client: Client, home: Path, log_bytes: int, *, mounts: bool = False) -> None:
        """`mounts`: others start containers with volumes of ours, too."""
        self.changes = Changes()
        self.away = ""
        self.launching: set[str] = set()  # ids (ours) that are being created at this moment
        self.killing: set[str] = set()  # engine ids of those that we are ending
        self.shared_cgroup: SharedCgroup | None = None
        self.pids: dict[str, int] = {}  # engine id → host pid of the first process
        self._ours: set[str] = set()  # engine ids of containers that a look has shown to be launched here
        self._client, self._log_bytes = client, log_bytes
        self._home, self._label = str(home), f"{options.LABEL_HOME}={home}"
        self.mounts, self.mounted = mounts, Mounted()
        self.found_out: Callable[[str, Mapping[str, Any]], None] = lambda id_, about: None
        self._looking = WeakValueDictionary[str, asyncio.Lock]()  # by engine id, while somebody looks or waits to
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._hints: asyncio.Queue[str] = asyncio.Queue()
        self._unseen: set[str] = set()  # engine ids that events were about since the last look at them began
        self._logs: dict[str, LogCopier] = {}
        self._lines = InAll(LINES_A_SECOND_IN_ALL, clock.monotonic())
        self._tasks: list[asyncio.Task[None]] = []
        self._events: EventFollower | None = None
        self._stay: set[str] = set()  # engine ids of what is left of something, and Docker could not remove

    @property
    def broke_off(self) -> float:
        """When Docker was last seen to be restarted, in seconds since the epoch."""
        return self._events.broke_off if self._events is not None else 0.0

    async def start(self) -> None:
        loop = asyncio.get_running_loop()

        def happened(engine_id: str, change: str) -> None:
            wait = HEAD_START if change == "start" else 0.0
            loop.call_soon_threadsafe(loop.call_later, wait, self._hints.put_nowait, engine_id)

        others = self.mounted.happened if self.mounts else None
        self._events = EventFollower(self._client.api, self._label, happened, others)
        await self.reconcile()
        self._tasks = [asyncio.create_task(self._follow_hints()), asyncio.create_task(self._look_regularly())]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._events is not None:
            await asyncio.to_thread(self._events.close)
        for copier in self._logs.values():
            await asyncio.to_thread(copier.close)
        self.changes.close()

    async def look(self, engine_id: str) -> Status | None:
        """Inspects one container and tells what has changed. None if it is gone (or only just being made)."""
        async with self._looking.setdefault(engine_id, asyncio.Lock()):
            self._unseen.discard(engine_id)
            found = await self._client.call(_inspect, self._client.look, engine_id)
            if found is None:
                self._gone(engine_id)
                return None
            id_ = self._is_ours(found) or await self._whose(found)
            if not id_ or id_ in self.launching or found["State"]["Status"] == "created":
                return None
            self.pids[engine_id] = found["State"]["Pid"]
            status = as_sighting(found, id_)
            if status.condition is Condition.ENDED:
                await self._last_words(engine_id)
                status = await self._with_its_reason(status, _limit(found))
            self.changes.see(status)
            return status

    async def require_ours(self, engine_id: str) -> None:
        """Before each act on a container: a row of the database may name any, and an image have any label.

        One that is gone is nobody's. Docker is asked about unknown containers only, and in turn with the looks: however
        many acts wait for a container that Docker is slow about, they take one thread. Raises EngineError if it is not
        ours.
        """
        if engine_id in self._ours:
            return  # neither the labels nor the mounts of a container change
        if ENGINE_ID.fullmatch(engine_id):
            async with self._looking.setdefault(engine_id, asyncio.Lock()):
                found = await self._client.call(_inspect, self._client.look, engine_id)
            if found is None or self._is_ours(found):
                return
            run = self.mounted.of(engine_id)
            if run is not None and run.volume in volumes_of(found):
                return
        log.error("Refused to act on container %s: this appliance did not start it.", ascii(engine_id[:64]))
        raise EngineError("This appliance did not start that container, and leaves it alone.", code="not_ours")

    def _is_ours(self, found: Mapping[str, Any]) -> str:
        """Our id of a container that was launched here, which is noted; empty if it is another's."""
        if id_ := options.launched_here(found["Config"]["Labels"] or {}, found["Mounts"], self._home):
            self._ours.add(found["Id"])
        return id_

    def _gone(self, engine_id: str) -> None:
        if (run := self.mounted.of(engine_id)) is not None and (ended := self.mounted.ended(run, None)) is not None:
            self.changes.see(ended)
        self.changes.gone_from_engine(engine_id)
        self.mounted.removed(engine_id)
        self.pids.pop(engine_id, None)
        self._ours.discard(engine_id)

    def has_ended(self, id_: str) -> bool:
        """Tells the end of a run that nobody can look at any more: its container is, or will be, another one.

        False if nothing says that it has begun.
        """
        run, last = self.mounted.run(id_), self.changes.last(id_)
        if run is None or (last is not None and last.condition is Condition.ENDED):
            return last is not None
        if (ended := self.mounted.ended(run, last)) is not None:
            self.changes.see(ended)
        return ended is not None

    async def _whose(self, found: Mapping[str, Any]) -> str:
        """Our id of a container that was not launched here; empty if it has nothing of ours, or not any more."""
        engine_id, pid = found["Id"], found["State"]["Pid"]
        before = self.mounted.of(engine_id)
        folder = await self._client.blocking(folder_of, pid) if pid else ""
        id_ = self.mounted.whose(found, folder)
        run = self.mounted.run(id_)
        if run is None:
            return ""
        for earlier in self.mounted.earlier(engine_id, id_):
            self.has_ended(earlier.id)  # it was started again before anybody had looked
            self.mounted.forget(earlier.id)  # or each look would take longer after each of its starts
        if before is None or before.id != id_ or not before.sure:
            self.found_out(id_, about(found))
        if (tty := terminal(found)) is not None:
            self.copy_logs(engine_id, run.log_path, tty=tty, begin=run.since)
        return id_

    async def _with_its_reason(self, ended: Status, limit: str) -> Status:
        """That it passed its limit of host memory Docker may learn after it has reported the end, or never."""
        last = self.changes.last(ended.id)
        reported = last is not None and last.condition is Condition.ENDED
        if last is not None and reported and last.reason:
            return replace(ended, reason=last.reason)
        flagged = ended.reason == limit
        explained = ended.reason or reported or ended.engine_id in self.killing
        if not ended.exit_code or (explained and not flagged):
            return ended
        kills = await self._client.blocking(kernel_log.oom_kills)
        if kills is not None and (reason := _by_the_kernel(kills, ended.engine_id, limit, self.shared_cgroup)):
            return replace(ended, reason=reason)
        if flagged and self.shared_cgroup and any(self.shared_cgroup.path in kill.limit for kill in kills or []):
            # Control groups of version 1 tell all below one that passes its limit, and Docker takes each for ended.
            return replace(ended, reason="")
        if flagged or ended.exit_code != SIGKILLED:
            return ended
        return await self._with_dockers_reason(ended)  # the kernel leaves lines out, too

    async def _with_dockers_reason(self, ended: Status) -> Status:
        for _ in range(LOOKS_FOR_REASON):
            await asyncio.sleep(REASON_WITHIN / LOOKS_FOR_REASON)
            if found := await self._client.call(_inspect, self._client.look, ended.engine_id):
                ended = as_sighting(found, ended.id)
            if ended.reason:
                break
        return ended

    async def reconcile(self) -> list[Status]:
        """Compares with Docker's list and looks at whatever differs. Returns all there are."""
        listed = await self._client.call(self._list)
        differ: list[Callable[[], Awaitable[object]]] = []
        for id_, each in listed:
            engine_id = each["Id"]
            if id_ in self.launching:
                continue
            if each["State"] in LEFTOVERS:
                differ.append(partial(self._tidy, id_, engine_id))
                continue
            labels = each["Labels"]
            self.copy_logs(engine_id, Path(labels[options.LABEL_LOG]), tty=labels[options.LABEL_TTY] != "no")
            last = self.changes.last(id_)
            if last is None or last.condition is not CONDITIONS.get(each["State"], Condition.ENDED):
                differ.append(partial(self._look_again, engine_id))
        await self._each(differ)
        others = await self._client.call(self.mounted.listed, self._client.look)
        await self._each(partial(self._look_at_other, each) for each in others)
        present = {each["Id"] for each in others} | {each["Id"] for _, each in listed}
        self._stay &= present
        gone = [status.engine_id for status in self.changes.known() if status.engine_id not in present]
        await self._each(partial(self._look_again, engine_id) for engine_id in gone)
        return self.changes.known()

    async def _each(self, looks: Iterable[Callable[[], Awaitable[object]]]) -> None:
        """Some at once. Raises what one of them has raised, but only when all others are through."""

        async def in_its_turn(look: Callable[[], Awaitable[object]]) -> None:
            async with self._at_once:
                await look()

        for failed in await asyncio.gather(*map(in_its_turn, looks), return_exceptions=True):
            if failed is not None:
                raise failed

    async def _look_again(self, engine_id: str) -> None:
        """Of one that Docker says nothing about now, what was seen last stays. Raises EngineError if nothing was."""
        try:
            await self.look(engine_id)
        except EngineError as error:
            if all(status.engine_id != engine_id for status in self.changes.known()):
                raise
            log.debug("Could not look at %s: %s", engine_id[:12], error)  # the next reconciliation will

    async def _look_at_other(self, listed: Mapping[str, Any]) -> None:
        """At one that was not launched here, if it is not as it was."""
        run, condition = self.mounted.of(listed["Id"]), CONDITIONS.get(listed["State"], Condition.ENDED)
        last = self.changes.last(run.id) if run is not None else None
        open_ = self.mounted.nobodys & set(volumes_of(listed))
        if listed["State"] != "created" and (open_ or (run and (last is None or last.condition is not condition))):
            await self._look_again(listed["Id"])

    def copy_logs(self, engine_id: str, path: Path, *, tty: bool, begin: float = 0.0) -> None:
        copier = self._logs.get(engine_id)
        if copier is None or copier.path != path or (copier.done.is_set() and not copier.complete):
            self._logs[engine_id] = LogCopier(
                self._client.api, engine_id, path, self._log_bytes, self._lines, tty=tty, begin=begin
            )

    async def copied(self, engine_id: str) -> None:
        """Returns when Docker has nothing more of its output than the log. Raises EngineError if that takes long."""
        if (copier := self._logs.get(engine_id)) is None:
            return
        self.copy_logs(engine_id, copier.path, tty=copier.tty, begin=copier.begin)  # again, if it had to stop
        copier = self._logs[engine_id]
        await copier.until_done(COPIED_WITHIN)
        if not copier.complete and not copier.refused:
            raise EngineError(NOT_COPIED, code="output_left", status=503)

    async def stop_logs(self, engine_id: str) -> None:
        await self._last_words(engine_id)
        if (copier := self._logs.pop(engine_id, None)) is not None:
            await self._client.blocking(copier.close)

    async def _last_words(self, engine_id: str) -> None:
        if (copier := self._logs.get(engine_id)) is not None:
            await copier.until_done(LAST_WORDS)

    async def _tidy(self, id_: str, engine_id: str) -> None:
        """Takes away what a launch left that failed or was cut short before the start, and what a removal left that
        dockerd did not survive (Docker calls it dead)."""
        try:
            # The list may be from before the start of a launch that is through by now.
            found = await self._client.call(_inspect, self._client.look, engine_id)
            if found is None or id_ in self.launching or found["State"]["Status"] not in LEFTOVERS:
                return
            if engine_id not in self._stay:
                log.info("Removing what is left of container %s.", engine_id[:12])
            await self._client.unless_gone(partial(self._client.api.remove_container, engine_id, v=True))
        except EngineAway:
            raise
        except EngineError as error:  # a busy mount, an error of the file system: it hides none of the others
            if engine_id not in self._stay:
                log.warning("What is left of container %s stays until that can be: %s", engine_id[:12], error)
            self._stay.add(engine_id)

    def _list(self) -> list[tuple[str, dict[str, Any]]]:
        """With the id of each. A launch that was cut off may have left two of one id."""
        found = self._client.look.containers(all=True, filters={"label": self._label})
        named = [(options.launched_here(each["Labels"], each["Mounts"], self._home), each) for each in found]
        return [(id_, each) for id_, each in named if id_]

    async def _follow_hints(self) -> None:
        async with asyncio.TaskGroup() as looks:
            while True:
                engine_id = await self._hints.get()
                if engine_id not in self._unseen:  # else a look that has not begun will see that, too
                    self._unseen.add(engine_id)
                    looks.create_task(self._look_on_hint(engine_id))

    async def _look_on_hint(self, engine_id: str) -> None:
        try:
            async with self._at_once:
                await self.look(engine_id)
        except EngineError as error:
            log.debug("Could not look at %s: %s", engine_id[:12], error)  # the next reconciliation will
        except Exception:
            log.exception("Looking at container %s failed", engine_id[:12])

    async def _look_regularly(self) -> None:
        while True:
            await asyncio.sleep(LOOK_AGAIN)
            try:
                await self.reconcile()
                self._is_away("")
            except EngineAway as error:
                self._is_away(str(error))
            except Exception:
                log.exception("Comparing with Docker's list failed")

    def _is_away(self, why: str) -> None:
        if bool(why) != bool(self.away):
            log.log(logging.ERROR if why else logging.INFO, "%s", why or "Docker answers again.")
        self.away = why


def as_sighting(found: Mapping[str, Any], id_: str) -> Status:
    """What an inspection (GET /containers/{id}/json) says. `id_`: ours."""
    state = found["State"]
    condition = CONDITIONS.get(state["Status"], Condition.ENDED)
    ended = condition is Condition.ENDED
    started_at, finished_at = _seconds(state["StartedAt"]), _seconds(state["FinishedAt"])
    if started_at is not None and finished_at is not None and ended:
        finished_at = max(started_at, finished_at)  # by two clocks: what lasts a moment ends before it starts
    return Status(
        id=id_,
        engine_id=found["Id"],
        condition=condition,
        exit_code=state["ExitCode"] if ended else None,
        started_at=started_at,
        finished_at=finished_at if ended else None,
        reason=_reason(found) if ended else "",
    )


def _reason(found: Mapping[str, Any]) -> str:
    state = found["State"]
    if state.get("OOMKilled") and state["ExitCode"] != 0:
        return _limit(found)
    return str(state.get("Error") or "")


def _limit(found: Mapping[str, Any]) -> str:
    """The reason of a container that was ended because it had passed its own limit of host memory."""
    limit = found["HostConfig"].get("Memory") or 0
    return f"Out of host memory: it passed its limit of {limit / 2**20:.0f} MiB and was ended."


def _by_the_kernel(kills: Sequence[OomKill], engine_id: str, limit: str, shared_cgroup: SharedCgroup | None) -> str:
    """Why the kernel ended a process of this container for lack of memory; empty if it has ended none."""
    for kill in reversed(kills):
        if engine_id in kill.group:
            if engine_id in kill.limit:
                return limit
            return str(shared_cgroup if shared_cgroup and kill.limit.endswith(shared_cgroup.path) else kill)
    return ""


def _seconds(stamp: str) -> float | None:
    return None if stamp == NEVER else parse_stamp(stamp) / 1e9


def _inspect(api: docker.APIClient, engine_id: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = api.inspect_container(engine_id)
    except docker.errors.NotFound:
        return None
    return found
