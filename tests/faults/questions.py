"""What is asked after each round: is all that should live alive, is every byte and row accounted for?"""

import contextlib
import json
import os
from collections import Counter
from pathlib import Path

from django.conf import settings
from django.core.management import CommandError, call_command

from scheduler import proc
from scheduler.engines.docker.options import LABEL
from scheduler.engines.process import tree
from tests.faults.world import GIB, World, Wrong, processes
from web.models import AllocationEvent, Claim, Container, Gpu

PIDFDS = 1  # its parent's, with whom it ends
THREADS = 76  # of a scheduler at rest: its pools' together, with Docker sixteen each that fetch images and see to execs
TASKS = 4  # of one kind, likewise


def ask(world: World) -> list[str]:
    """What is wrong, in sentences; empty if nothing is. Waits for what takes a moment by its nature."""
    found = []
    for question in (programs, nobody_stopped, memory, history, audit, leftovers, nobody_waits, nothing_kept):
        try:
            question(world)
        except Wrong as wrong:
            found.append(f"{question.__name__}: {wrong}")
    return found


def programs(world: World) -> None:
    """The engine has exactly the containers that the records say are alive."""

    def same() -> bool:
        return _alive(world) == {str(pk) for pk in Container.objects.live().values_list("pk", flat=True)}

    world.until(same, "the engine and the database have different containers", within=15)


def nobody_stopped(world: World) -> None:
    """Whoever is to run goes on: what is locked for a turn has one, and nothing stays stopped that nobody lets go."""
    running = {str(pk) for pk in Container.objects.live().filter(paused_at=None, swap="").values_list("pk", flat=True)}
    waiting = {pid for id_, _, programs in world.containers_processes() if id_ in running for pid in programs}

    def all_went_on() -> bool:
        waiting.difference_update([pid for pid in waiting if world.driver.goes_on(pid)])
        return not waiting

    try:
        world.until(all_went_on, "", within=15)
    except Wrong:
        raise Wrong(f"processes {sorted(waiting)} do not go on") from None


def memory(world: World) -> None:
    """What the records say is what the card shows, and nothing is unexplained or anybody else's."""

    def equal() -> bool:
        for card in world.card():
            gpu = Gpu.objects.get(uuid=card["uuid"])
            claims = Claim.objects.filter(gpu=gpu, container__finished_at=None)
            used = sum(claim.used for claim in claims)
            if used != card["used"] or gpu.foreign or any(claim.unexplained for claim in claims):
                return False
            if any(not claim.used <= claim.granted <= claim.quota for claim in claims):
                return False
        return True

    def figures() -> str:
        claims = Claim.objects.filter(container__finished_at=None).select_related("container", "gpu")
        said = [(c.container.name, c.used, c.granted, c.quota, c.unexplained) for c in claims]
        return f"the card {world.card()}, the records {said}, foreign {list(Gpu.objects.values_list('foreign'))}"

    try:
        world.until(equal, "", within=15)
    except Wrong:
        raise Wrong(figures()) from None


def history(world: World) -> None:
    """Every container has begun once and ended once at most, in this order; what was moved out came back before it was
    moved again."""
    for container in Container.objects.all():
        kinds = [event.kind for event in world.events(container)]
        count = Counter(kinds)
        if max(count["started"], count["ended"], count["killed"]) > 1:
            raise Wrong(f"{container.name}: {dict(count)}")
        if container.started_at is not None and not count["started"]:
            raise Wrong(f"{container.name} runs, and nobody wrote down that it started: {kinds}")
        never_came_to_a_node = container.handed and container.started_at is None
        if count["ended"] and not count["started"] and not never_came_to_a_node:
            raise Wrong(f"{container.name} ended, and nobody wrote down that it started: {kinds}")
        if container.finished_at is not None and container.started_at is not None and not count["ended"]:
            raise Wrong(f"{container.name} has ended, and nobody wrote it down: {kinds}")
        if {"started", "ended"} <= count.keys() and kinds.index("ended") < kinds.index("started"):
            raise Wrong(f"{container.name} ended before it started: {kinds}")
        moves = [kind for kind in kinds if kind in ("swapped_out", "swapped_in")]
        if moves != (["swapped_out", "swapped_in"] * len(moves))[: len(moves)]:
            raise Wrong(f"{container.name} went to host memory, or came back, twice: {kinds}")
        last = AllocationEvent.objects.filter(container=container, kind="ended").first()
        if last is not None and last.at != container.finished_at:
            raise Wrong(f"{container.name} ended at {last.at} by its history and at {container.finished_at} by its row")


def audit(world: World) -> None:
    with open(os.devnull, "w") as nowhere:
        try:
            call_command("verify_audit", stdout=nowhere, stderr=nowhere)
        except (CommandError, SystemExit) as error:
            raise Wrong(str(error)) from None


def leftovers(world: World) -> None:
    """Nothing of the ended lies about: sockets, folders of processes, processes."""

    def clean() -> bool:
        live = {str(pk) for pk in Container.objects.live().values_list("pk", flat=True)}
        listed = {str(pk) for pk in Container.objects.listed().values_list("pk", flat=True)}
        return _names(world.home / "sockets") <= live and _names(world.home / "processes") <= listed

    world.until(clean, f"left: {_names(world.home / 'sockets')}, {_names(world.home / 'processes')}", within=15)


def nobody_waits(world: World) -> None:
    """What is free can be had: a container that wants all that nobody was promised gets it at once."""
    frees = []
    for gpu in Gpu.objects.filter(node__name=settings.GPUSHARE_NODE):
        if gpu.drained:  # it had fallen off the bus for a while, and only a person puts it back
            world.do("undrain-gpu", gpu=gpu.uuid)
        promised = sum(Claim.objects.filter(container__finished_at=None, gpu=gpu).values_list("quota", flat=True))
        frees.append(gpu.capacity - promised)
    free = max(frees)
    name = f"probe-{Container.objects.count()}"
    script = f"exec {world.workload} --bytes {free - GIB // 4} --check 1MiB"
    command = world.outcome(world.begin_launch(name, "sh", "-c", script, gpu_memory=free))
    if command.outcome != "done" or command.container is None:
        raise Wrong(f"a container of {free} bytes cannot start: {command.message}")
    ended = world.until_state(command.container, "exited")
    waits = world.events(ended, "suspended")
    if waits:
        raise Wrong(f"it was suspended although {free} bytes are free: {[event.detail for event in waits]}")
    world.do("remove", ended)


def nothing_kept(world: World) -> None:
    """The scheduler holds nothing of the ended: no descriptors, threads, tasks; nor has Docker groups or mounts. And of
    the schedulers before, nobody is left."""

    def kept() -> list[str]:
        return [*_kept_by_scheduler(world), *_groups_and_mounts(world), *_orphans(world)]

    try:
        world.until(lambda: not kept(), "", within=15)
    except Wrong:
        if left := kept():  # empty: gone between the two looks
            raise Wrong(f"it keeps {left}") from None


def _kept_by_scheduler(world: World) -> list[str]:
    """Descriptors of processes and pages, connections, and more threads or tasks than work at rest."""
    try:
        return [each for pid in world.pids("scheduler") for each in _kept_by(world, pid)]
    except (FileNotFoundError, ProcessLookupError):
        return ["a scheduler that has just ended"]  # who it is now is asked at the next look


def _kept_by(world: World, pid: int) -> list[str]:
    live = Container.objects.live().count()
    found = []
    links = _links(pid)
    pages = [link for link in links if "gpushare" in link and link.startswith("/memfd:")]
    helpers = sum(each.parent == pid for each in tree.descendants(pid))  # of its card, and whom it waits for
    pidfds = links.count("anon_inode:[pidfd]") - helpers
    if not live and (pages or pidfds > PIDFDS):
        found.append(f"{len(pages)} lease pages and {pidfds} pidfds")
    threads = len(os.listdir(f"/proc/{pid}/task"))
    if threads > THREADS:
        found.append(f"{threads} threads")
    found += [f"{times} times the task {name}" for name, times in world.tasks(pid).items() if times > TASKS]
    return found


def _orphans(world: World) -> list[str]:
    """Guardians and workers that a scheduler has left which is no more."""
    ours, home = {os.getpid(), *world.pids("scheduler")}, f"GPUSHARE_HOME={world.home}".encode()
    found = []
    for pid, environment in processes():
        with contextlib.suppress(OSError):  # it has ended
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            is_one = any(word.endswith((b"card/worker.py", b"/guardian")) for word in words)
            if is_one and home in environment.split(b"\0") and (stat := proc.stat(pid)) and stat.parent not in ours:
                found.append(f"process {pid} of an earlier scheduler: {b' '.join(words).decode()}")
    return found


def _groups_and_mounts(world: World) -> list[str]:
    """What is there of Docker containers that are no more."""
    if world.ground.dockerd is None:
        return []
    there = len(world.docker.containers(all=True))
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    merged = [mount for mount in mounts if mount.startswith(f"{world.ground.dockerd.folder}/data/overlay2/")]
    gone = set(Container.objects.exclude(removed_at=None).values_list("engine_id", flat=True))
    groups = [str(path) for path in Path("/sys/fs/cgroup").glob("*/gpushare-*/*") if path.name in gone]
    return groups + (merged if len(merged) > there else [])


def _links(pid: int) -> list[str]:
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def _alive(world: World) -> set[str]:
    """The containers that the process engine's keepers, or Docker, have running."""
    if world.docker is not None:
        found = world.docker.containers(filters={"label": LABEL})
        return {container["Labels"][LABEL] for container in found}
    return {path.parent.name for path in (world.home / "processes").glob("*/running.json") if _kept(path)}


def _kept(path: Path) -> bool:
    try:
        running = json.loads(path.read_text())
        stat = Path(f"/proc/{running['keeper']}/stat").read_text()
    except (OSError, ValueError):
        return False
    state, *_rest = stat.rpartition(")")[2].split()
    return state != "Z" and not path.with_name("ended.json").exists()


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()
