"""The Docker engine. The scheduler is the only one who talks to Docker about our containers."""

import asyncio
import contextlib
import logging
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from scheduler import clock, proc
from scheduler.engines.base import Condition, EngineAway, EngineError, Exec, Launch, Progress, Status, Use
from scheduler.engines.docker import options, versions
from scheduler.engines.docker.attach import Attached, Unasked, attach_again
from scheduler.engines.docker.client import ANSWERS_WITHIN, LOOK_WITHIN, Client
from scheduler.engines.docker.executed import Execs, Executed
from scheduler.engines.docker.gpu_access import Access, detect, node_of
from scheduler.engines.docker.groups import Groups
from scheduler.engines.docker.image_files import Preloads, Programs
from scheduler.engines.docker.images import STOPS, Image, Images
from scheduler.engines.docker.launching import folders
from scheduler.engines.docker.launching.maker import Maker
from scheduler.engines.docker.mounting.mountings import DockerMountings
from scheduler.engines.docker.settings import DockerSettings, has_init, limits_of, wanted_limits
from scheduler.engines.docker.shared_cgroup import SharedCgroup, shared_cgroup
from scheduler.engines.docker.watch import Watch
from scheduler.engines.placer import Host, Placer
from scheduler.engines.runtime_environment import RuntimeEnvironment, keep_text
from scheduler.engines.swarm.manager import SwarmManager, in_swarm, require_manager
from scheduler.engines.swarm.service import service_name
from web.sizes import format_size
from web.spec.inside.reserved import SHIM

log = logging.getLogger(__name__)


CARD_NODES = Path(__file__).with_name("launching") / "card_nodes.py"
NODE_SECONDS = 30.0


class DockerEngine:
    name = "docker"
    memory_stays = ""

    def __init__(self, home: Path, runtime_environment: RuntimeEnvironment, settings: DockerSettings) -> None:
        self._home, self._runtime_environment, self._settings = home.resolve(), runtime_environment, settings
        self._preload = self._home / "ld.so.preload"
        self._places = self._home / "mounts"
        self._client = Client(settings.address)
        self._watch = Watch(self._client, self._home, settings.log_bytes, mounts=settings.mounts)
        self.mountings = DockerMountings(self._client, self._watch)
        self._execs = Execs(self._client, self._home / "execs")
        self._attached = Unasked()
        self._shared_cgroup: SharedCgroup | None = None
        self._groups = Groups()
        self._why_not_held: str | None = None
        self.outdated: Sequence[str] = ()
        self._why_not_started = "The Docker engine has not been started."
        self.placer: Placer | None = None
        self.in_swarm = False
        self.folder: Path | None = None

    @property
    def away(self) -> str:
        return self._why_not_started or self._watch.away

    @property
    def was_used(self) -> bool:
        """Whether this home has run containers in Docker before."""
        return self._preload.exists()

    async def start(self) -> None:
        try:
            info = await self._client.connect()
            if self._settings.swarm:
                self.placer = self._swarm(info)
            self.in_swarm = in_swarm(info)
            self._watch.mounts = self._settings.mounts or self.in_swarm
            await self._prepare(info)
            for sentence in self.outdated:
                log.warning("%s", sentence)
            await self._client.blocking(self._hold_together)
            await self._watch.start()
            await self._client.call(self._execs.end_what_was_left)
        except EngineAway as error:
            self._why_not_started = str(error)
            raise
        self._why_not_started = ""

    def _swarm(self, info: Mapping[str, Any]) -> Placer:
        require_manager(info)
        here = Host(info["Name"], {}, {}, memory=info["MemTotal"], cpus=info["NCPU"])
        return SwarmManager(
            info["Swarm"]["Cluster"]["ID"], self._client, self._runtime_environment.simulation,
            self._settings.log_bytes, self._settings.registries, wanted_limits(self._settings), here,
        )  # fmt: skip

    async def _prepare(self, info: Mapping[str, Any]) -> None:
        # An engine that is reached over the network has its folders elsewhere.
        self.folder = Path(info["DockerRootDir"]) if self._settings.address.startswith("unix:") else None
        self._images = Images(self._client.api, self._settings.registries)
        access: Access = detect(self._settings.gpu_access, info, self._runtime_environment.simulation)
        by_toolkit = access.toolkit or info.get("DefaultRuntime") == "nvidia"
        toolkit = await self._client.blocking(versions.toolkit) if by_toolkit else []
        components = (await self._client.call(self._client.api.version)).get("Components", [])
        self.outdated = versions.outdated([*components, *toolkit])
        self._limits = limits_of(self._settings, info)
        self._shared_cgroup = self._watch.shared_cgroup = shared_cgroup(self._home, info, self._limits.host_memory)
        folders.take_away_all(self._places)
        if self._settings.volume_roots and not folders.may_mount(self._places):
            log.warning(
                "This scheduler may not mount anything: containers get named volumes, but no folders of the host."
            )
        keep_text(f"{SHIM}\n", self._preload)
        self._maker = Maker(
            client=self._client,
            images=self._images,
            preloads=Preloads(self._client.api, self._home, self._preload),
            programs=Programs(self._client.api, toolkit=by_toolkit),
            access=access,
            given=options.Given(
                home=self._home,
                shim=self._runtime_environment.shim,
                preload=self._preload,
                log_bytes=self._settings.log_bytes,
                parent=self._shared_cgroup.parent if self._shared_cgroup else None,
                init=has_init(info),
                loaders=not by_toolkit or versions.known_good(toolkit),
            ),
            limits=self._limits,
            places=self._places,
            roots=self._settings.volume_roots,
            attached=self._attached,
            has_begun=self._hold_together,  # systemd makes their slice with the first of them
        )
        await self._client.call(self._maker.preloads.take_away_left)

    def _hold_together(self) -> None:
        """Puts all containers under one limit of host memory; what keeps it from that goes into the log once."""
        if self._limits.host_memory is None:
            return  # it was said that there is no control group for memory
        why_not = (
            self._shared_cgroup.hold()
            if self._shared_cgroup
            else "This Docker engine does not let clients choose a control group."
        )
        if why_not and why_not != self._why_not_held:
            log.warning(
                "All containers together may take more than the %s of host memory that are meant for them "
                "(GPUSHARE_HOST_MEMORY): no limit can be set: %s",
                format_size(self._limits.host_memory), why_not,
            )  # fmt: skip
        self._why_not_held = why_not

    async def close(self) -> None:
        await self._watch.close()
        for engine_id in list(self._attached):
            self._attached.let_go(engine_id)
        if self._shared_cgroup is not None:
            self._shared_cgroup.remove()
        self._client.close()

    async def image_labels(self, image: str, progress: Progress | None = None) -> Mapping[str, str]:
        self._check_started()
        return (await self._image(image, progress)).labels

    async def _image(self, name: str, progress: Progress | None) -> Image:
        """Fetched if it is not there. Raises EngineError."""
        if found := await self._client.call(self._images.find, name, image=name):
            return found
        return await self._client.fetch(self._images.fetch, name, progress, image=name)

    async def launch(self, launch: Launch, progress: Progress | None = None) -> Status:
        self._check_started()
        if known := self._watch.changes.last(launch.id):
            return known  # the same launch again, taken up by a restarted scheduler: it may even have ended meanwhile
        self._watch.launching.add(launch.id)
        try:
            engine_id = await self._make(launch, progress)
        finally:
            self._watch.launching.discard(launch.id)
        self._watch.copy_logs(engine_id, launch.log_path, tty=launch.tty)
        status = self._watch.changes.last(launch.id)
        if status is None:  # no look was faster
            status = Status(launch.id, engine_id, Condition.RUNNING, started_at=clock.wall())
            self._watch.changes.see(status)
        return status

    async def _make(self, launch: Launch, progress: Progress | None) -> str:
        """Its id. Cancelled while the image is fetched, it makes nothing."""
        if made := await self._try_to_make(launch):
            return made
        await self._image(launch.image, progress)
        if made := await self._try_to_make(launch):
            return made
        raise EngineError(f'The image "{launch.image}" was removed right after it was pulled.')

    async def _try_to_make(self, launch: Launch) -> str:
        """Its id; empty if its image is not there. Cancelled, it brings to its end what it has begun."""
        turn = threading.Lock()  # of who is first: the thread that begins to make it, or who calls that off
        making = asyncio.create_task(
            self._client.call(
                self._maker.make,
                launch,
                turn,
                image=launch.image,
                command=launch.command[0] if launch.command else "",
                ports=", ".join(launch.ports),
            )
        )
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            if not turn.acquire(blocking=False):
                await asyncio.wait([making], timeout=LOOK_WITHIN)  # one that hangs: it is looked for again
            making.add_done_callback(lambda made: made.cancelled() or made.exception())  # nobody else asks
            raise

    async def attach(self, engine_id: str) -> Attached:
        self._check_started()
        attached = self._attached.pop(engine_id, None)
        if attached is None:
            await self._watch.require_ours(engine_id)
            attached = await self._client.call_inside(attach_again, self._client, engine_id)
        return await attached.open()

    async def exec(self, engine_id: str, asked: Exec) -> Executed:
        self._check_started()
        await self._watch.require_ours(engine_id)
        found = await self._watch.look(engine_id)
        if found is None or found.condition is Condition.ENDED:
            raise EngineError("The container has ended.", code="not_running")
        if found.condition is Condition.PAUSED:
            raise EngineError("It is paused: resume it first.", code="paused")
        return await (await self._client.call_inside(self._execs.start, engine_id, asked)).open()

    async def pause(self, engine_id: str) -> None:
        await self._act(self._client.api.pause, engine_id, Condition.PAUSED)

    async def resume(self, engine_id: str) -> None:
        await self._act(self._client.api.unpause, engine_id, Condition.RUNNING)

    def require_within(self, id_: str, size: int) -> None: ...

    def memory_left(self) -> int | None:
        return self._shared_cgroup.left() if self._shared_cgroup else None

    async def add_memory(self, engine_id: str, extra: int) -> None:
        self._check_started()
        await self._watch.require_ours(engine_id)
        await self._client.call(self._set_memory, engine_id, extra)

    def _set_memory(self, engine_id: str, extra: int) -> None:
        found = self._client.api.inspect_container(engine_id)
        run = self._watch.mounted.of(engine_id)
        launched_with = run.memory if run else found["Config"]["Labels"].get(options.LABEL_MEMORY)
        if not launched_with or found["State"]["Status"] not in ("running", "paused"):
            return
        limit = int(launched_with) + extra
        swap = limit if found["HostConfig"]["MemorySwap"] > 0 else None
        self._client.api.update_container(engine_id, mem_limit=limit, memswap_limit=swap)

    async def give_card(self, engine_id: str, gpu: str) -> None:
        await self._card_node("give", engine_id, gpu)

    async def take_card(self, engine_id: str, gpu: str) -> None:
        await self._card_node("take", engine_id, gpu)

    async def _card_node(self, what: str, engine_id: str, gpu: str) -> None:
        self._check_started()
        if self._runtime_environment.simulation is not None:
            return  # its cards have no nodes
        await self._watch.require_ours(engine_id)
        await self._client.call(self._change_node, what, engine_id, gpu)

    def _change_node(self, what: str, engine_id: str, gpu: str) -> None:
        if pid := self._client.api.inspect_container(engine_id)["State"]["Pid"]:
            command = [sys.executable, "-I", "-S", str(CARD_NODES), str(pid), what, node_of(gpu)]
            if (done := subprocess.run(command, capture_output=True, text=True, timeout=NODE_SECONDS)).returncode:
                raise EngineError(f"Its device nodes could not be changed: {done.stderr.strip()}.")

    async def kill(self, engine_id: str, *, grace: float = 0.0) -> None:
        self._check_started()
        await self._watch.require_ours(engine_id)
        self._watch.killing.add(engine_id)
        try:
            await self._kill(engine_id, grace)
        finally:
            self._watch.killing.discard(engine_id)

    async def _kill(self, engine_id: str, grace: float) -> None:
        api = self._client.api
        if grace > 0 and await self._ask_to_end(engine_id):
            found = await self._watch.look(engine_id)
            if found is not None and found.condition is Condition.PAUSED:
                await self._client.unless_gone(api.unpause, engine_id)
            if await self._has_ended(engine_id, within=grace):
                return
        await self._client.unless_gone(api.kill, engine_id)
        if not await self._has_ended(engine_id, within=ANSWERS_WITHIN):
            raise EngineError("It has not ended after SIGKILL; the kernel holds it.")

    async def _ask_to_end(self, engine_id: str) -> bool:
        """By its stop signal. False if it has one that does not exist: then Docker sends it none but SIGKILL."""

        def ask() -> None:
            signal = self._client.look.inspect_container(engine_id)["Config"].get("StopSignal")
            self._client.api.kill(engine_id, signal=signal or STOPS)

        try:
            await self._client.unless_gone(ask)
        except EngineError as error:
            if "invalid signal" not in str(error).lower():
                raise
            return False
        return True

    def uses(self, engine_ids: Iterable[str]) -> dict[str, Use]:
        pids = self._watch.pids
        return self._groups.use({engine_id: pids[engine_id] for engine_id in engine_ids if pids.get(engine_id)})

    async def remove(self, engine_id: str) -> None:
        self._check_started()
        await self._watch.require_ours(engine_id)
        found = await self._watch.look(engine_id)
        if found is not None and found.condition is not Condition.ENDED:
            raise EngineError("It still runs: kill it first.", code="still_running")
        await self._watch.copied(engine_id)
        self._attached.let_go(engine_id)
        await self._watch.stop_logs(engine_id)
        # What is made for others with their containers, such as volumes, is not ours to take away with one.
        run = self._watch.mounted.of(engine_id)
        await self._client.unless_gone(partial(self._client.api.remove_container, engine_id, v=run is None))
        with contextlib.suppress(EngineError):  # another run has it
            if run is not None and run.volume.startswith(service_name("")):  # a Swarm leaves it behind
                await self._client.unless_gone(self._client.api.remove_volume, run.volume)
        await self._watch.look(engine_id)

    async def statuses(self) -> list[Status]:
        self._check_started()
        return await self._watch.reconcile()

    def changes(self) -> AsyncIterator[Status]:
        return self._watch.changes.stream()

    def drain(self) -> list[Status]:
        return self._watch.changes.drain()

    async def first_pid(self, engine_id: str) -> int:
        if engine_id not in self._watch.pids:
            await self._watch.look(engine_id)
        return self._watch.pids.get(engine_id, 0)

    def owns(self, engine_id: str, pid: int) -> bool:
        """By the control group, which no process leaves by itself; else by the PID namespace."""
        try:
            if engine_id in proc.read(pid, "cgroup").decode(errors="replace"):
                return True
            first = self._watch.pids.get(engine_id, 0)
            return first > 0 and proc.link(pid, "ns/pid") == proc.link(first, "ns/pid")
        except OSError:
            return False  # one of the two has ended

    async def _act(self, action: Any, engine_id: str, wanted: Condition) -> None:
        """Does it unless it is so already; what has ended cannot be paused or resumed."""
        self._check_started()
        await self._watch.require_ours(engine_id)
        found = await self._watch.look(engine_id)
        if found is not None and found.condition not in (wanted, Condition.ENDED):
            await self._client.unless_gone(action, engine_id)
            found = await self._watch.look(engine_id)
        if found is None or found.condition is Condition.ENDED:
            raise EngineError("The container has ended.", code="not_running")
        if found.condition is not wanted:
            raise EngineError(f"Docker left it {found.condition}.")

    async def _has_ended(self, engine_id: str, within: float) -> bool:
        deadline = clock.monotonic() + within
        while (found := await self._watch.look(engine_id)) is not None and found.condition is not Condition.ENDED:
            if clock.monotonic() > deadline:
                return False
            await asyncio.sleep(0.05)
        return True

    def _check_started(self) -> None:
        if self._why_not_started:
            raise EngineAway(self._why_not_started)
