"""What a well-behaved container notices of one that attacks: how long its calls beyond its lease take.

    python -m benchmarks.bystander [--engine docker] [SECONDS] [ATTACK…]
    cd another/tree && python PATH/TO/benchmarks/bystander.py …                (as `python -m benchmarks.before` does)

For each attack of tests/support/attacks.py a scheduler and a simulated card anew. One process asks for memory again and
again, 2 ms apart, while eight other containers attack; at first while they do nothing. Shown are the median, the 99th
percentile and the longest of its calls, and the longest that the scheduler's loop was late. The exit code is 1 if one
of the 99th percentiles is above 20 ms, or an attack has ended by itself.

By the process engine, the default, the programs are processes of the host at the containers' sockets, and the attack
"output" is left out, as none prints into a container's log. With `--engine docker` (root, and a dockerd in PATH, of
which it starts one of its own) all of them, the bystander and every attack, are programs inside containers, which have
the host's Python by read-only volumes (tests/support/inside.py). They are the same programs.

What is measured is what they do to the scheduler. Eight programs that only count would slow it as well where there are
two processors for all, so nobody competes for those: scheduler and bystander come before whatever else the host has to
do (a real-time priority). Where the kernel refuses that to a container's program, as it may with control groups of
version 2, the bystander has the greatest share that Docker can give. Without the right to it, the first line says so.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

import docker
import docker.errors

sys.path.insert(0, str(Path.cwd()))

from benchmarks.live import GIB, Live, until
from tests.support import inside
from tests.support.attacks import ATTACKS, BEGIN, BYSTANDER, Bystander, attack
from tests.support.dockerd import private

if TYPE_CHECKING:
    from web.models import Container

Going = Callable[[], bool]  # whether an attack still does

ATTACKERS = 8
LIMIT = 0.020  # seconds, of the 99th percentile
SLEEP = ["/bin/sleep", "3600"]
ALONE = "nobody else"
CPU = Path("/sys/fs/cgroup/cpu/cgroup.procs")  # in a group below this one nothing may have a real-time priority


class Outside:
    """Programs of the host, at the sockets of containers that do nothing."""

    engine = "process"
    attacks: Sequence[str] = [name for name in ATTACKS if name != "output"]
    environment: Mapping[str, str] = {}

    def __init__(self, live: Live) -> None:
        self._live = live

    def bystander(self) -> Bystander:
        (container,) = begun([bystander(self._live, SLEEP)])
        return Bystander(self._sockets(container))

    @contextmanager
    def attacked(self, name: str) -> Iterator[Going]:
        containers = begun(attackers(self._live, SLEEP))
        # All at once: some need ten seconds and more until they say that they attack.
        with ExitStack() as stack, ThreadPoolExecutor(ATTACKERS) as beginning:
            attacks = [attack(name, self._sockets(each)) for each in containers]
            processes = list(beginning.map(stack.enter_context, attacks))
            yield lambda: all(process.poll() is None for process in processes)

    def _sockets(self, container: Container) -> Path:
        return self._live.home / "sockets" / str(container.pk)

    def end_containers(self) -> None:
        self._live.end_containers()


class Inside:
    """Programs in Docker's containers, of the engine at this address."""

    engine = "docker"
    attacks: Sequence[str] = list(ATTACKS)

    def __init__(self, live: Live, address: str) -> None:
        self._live = live
        self._api = docker.APIClient(address, version="auto")
        self.environment = {"GPUSHARE_DOCKER_HOST": address, "GPUSHARE_VOLUME_ROOTS": " ".join(inside.ROOTS)}
        inside.build(address)

    def bystander(self) -> Contained:
        (container,) = begun([bystander(self._live, inside.words(BYSTANDER, inside.SOCKETS), **inside.FIELDS)])
        self._says(container, "allocating")
        return Contained(self._live, self._api, container)

    @contextmanager
    def attacked(self, name: str) -> Iterator[Going]:
        words = inside.words(BEGIN + ATTACKS[name], inside.SOCKETS)
        containers = begun(attackers(self._live, words, **inside.FIELDS))
        for each in containers:
            self._says(each, "attacking")
        yield lambda: all(self._runs(each) for each in containers)

    def _says(self, container: Container, word: str) -> None:
        until(lambda: word in self._live.log(container, 1000) or not self._runs(container), 120, f'"{word}"')
        if not self._runs(container):
            raise SystemExit(f"{container.name} has ended: {self._live.log(container, 10_000)}")

    def _runs(self, container: Container) -> bool:
        return bool(self._api.inspect_container(container.engine_id)["State"]["Running"])

    def end_containers(self) -> None:
        for each in self._api.containers(quiet=True):
            with suppress(docker.errors.APIError):  # it has ended meanwhile
                self._api.kill(each["Id"])


class Contained:
    """A `Bystander` in a container, which comes first as well."""

    def __init__(self, live: Live, api: docker.APIClient, container: Container) -> None:
        self._live, self._api, self._container = live, api, container
        api.update_container(container.engine_id, cpu_shares=1 << 18)
        with suppress(OSError):
            if os.sched_getscheduler(0) == os.SCHED_RR:
                pid = api.inspect_container(container.engine_id)["State"]["Pid"]
                if CPU.exists():
                    CPU.write_text(str(pid))
                os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(1))

    def forget(self) -> None:
        self._signal("USR1")

    def stop(self) -> list[float]:
        self._signal("TERM")
        until(lambda: self._live.log(self._container).endswith("]\n"), 60, "the bystander's word")
        took: list[float] = json.loads(self._live.log(self._container).splitlines()[-1])
        return took

    def _signal(self, name: str) -> None:
        try:
            self._api.kill(self._container.engine_id, name)
        except docker.errors.APIError as error:
            raise SystemExit(f"the bystander: {error}\n{self._live.log(self._container)[-10_000:]}") from None


Kind = Outside | Inside


def bystander(live: Live, words: Sequence[str], **fields: Any) -> Container:
    # SharedCgroup they may have more than there is, so that no lease is larger than what was asked for. The bystander's
    # is guaranteed: others may fill the card, and what is measured is not whether there is memory.
    return live.launch("bystander", words, gpu_memory=GIB, guaranteed=True, **fields)


def attackers(live: Live, words: Sequence[str], **fields: Any) -> list[Container]:
    return [live.launch(f"attacker-{n}", words, gpu_memory=32 * GIB, **fields) for n in range(ATTACKERS)]


def begun(containers: Sequence[Container]) -> list[Container]:
    """Their rows, once they run."""
    from web.models import Command

    of = Command.objects.filter(container__in=[each.pk for each in containers])
    until(lambda: not of.filter(done_at=None).exists(), 120, "the launch")
    for command in of.exclude(outcome=Command.Outcome.DONE):
        raise SystemExit(f"cannot be launched: {command.message}")
    for each in containers:
        each.refresh_from_db()
    return list(containers)


def end(kind: Kind) -> None:
    """Of all containers. The next scheduler begins with nobody."""
    from web.models import Container

    kind.end_containers()
    until(lambda: not Container.objects.live().exists(), 120, "the end of the containers")


def measure(live: Live, kind: Kind, name: str, seconds: float) -> bool:
    """Prints one line; whether the bystander's calls were quick enough."""
    with ExitStack() as stack:
        stack.enter_context(live.scheduler("fair", None, **kind.environment))
        stack.callback(end, kind)
        asking = kind.bystander()
        goes_on = stack.enter_context(kind.attacked(name)) if name != ALONE else lambda: True
        asking.forget()
        late = lateness(seconds)
        took = asking.stop()
        said = "" if goes_on() else "  it has ended by itself"
    high = quantiles(took, n=100)[98]
    figures = "".join(f"{figure * 1e3:>8.1f} ms" for figure in (median(took), high, max(took), late))
    print(f"{name:<30}{len(took):>7}{figures}{os.getloadavg()[0]:>7.1f}{said}", flush=True)
    return high <= LIMIT and not said


def lateness(seconds: float) -> float:
    """How late the loop was within so many seconds, at most."""
    from web.models import Node

    late, end = 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.5)
        late = max(late, Node.objects.get().late)
    return late


def come_first() -> str:
    """Before everybody else on this host, with all that is started from here; in words."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        return "shared with whatever else runs"
    return "for the scheduler and the bystander first"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", choices=("process", "docker"), default="process")
    parser.add_argument("seconds", type=float, nargs="?", default=10.0)
    parser.add_argument("attacks", nargs="*", metavar="attack")
    asked = parser.parse_args()
    with ExitStack() as stack:
        # Not before everybody else: neither the engine nor what its containers do.
        address = stack.enter_context(private()).address if asked.engine == "docker" else ""
        shared = come_first()
        live = stack.enter_context(Live(gpus="sim:1x64GiB", engine=asked.engine))
        kind: Kind = Inside(live, address) if address else Outside(live)
        print(f"{ATTACKERS} containers attack, engine {kind.engine}; {os.cpu_count()} processors, {shared}")
        heads = ("median", "p99", "longest", "loop late")
        print(f"{'attack':<30}{'calls':>7}{''.join(f'{head:>11}' for head in heads)}{'load':>7}", flush=True)
        well = [measure(live, kind, name, asked.seconds) for name in (ALONE, *(asked.attacks or kind.attacks))]
    return 0 if all(well) else 1


if __name__ == "__main__":
    sys.exit(main())
