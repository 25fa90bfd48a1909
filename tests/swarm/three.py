"""One appliance of three nodes that are a Swarm: a web process, PostgreSQL, Redis, three engines, three schedulers.

Each scheduler runs within its member, beside its engine: in its mounts, its network, under its host name. The first
speaks for the Swarm; the others have joined, each with a PostgreSQL role of its own. Only the cards are simulated.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import docker.errors

from appliance import VERSION
from scheduler.gpus import simulated_card
from shim import sim
from tests.support.appliance import ROOT, http
from tests.support.cluster import Cluster
from tests.support.dockerd import build_image
from tests.support.eventually import until
from tests.support.postgres import Postgres, running_postgres
from tests.support.redis_server import Redis, running_redis
from tests.support.swarm_lab import AWAY, Lab, Member, lab
from tests.support.tables import with_tables
from web.schema import last_change

IMAGE = "gpushare/swarm:latest"
CARDS = {"node1": "sim:1x1GiB", "node2": "sim:1x2GiB", "node3": "sim:2x1GiB"}
DECLARED = [{"gpu0_mib": 1000}, {"gpu0_mib": 2000}, {"gpu0_mib": 1000, "gpu1_mib": 1000}]
LABEL = "com.gpushare.launch"


class Three(Cluster):
    def __init__(self, folder: Path, swarm: Lab, place: Path, postgres: Postgres, redis: Redis) -> None:
        self.swarm, self._place = swarm, place
        self._joined: dict[str, dict[str, str]] = {}
        super().__init__(folder, postgres, redis, CARDS, swarm.outside)

    def member(self, name: str) -> Member:
        return next(each for each in self.swarm.members if each.name == name)

    def home(self, name: str) -> Path:
        return self.member(name).folder / "home" if name in CARDS else self.folder / name

    def environ(self, name: str, **more: str) -> dict[str, str]:
        if name not in CARDS:
            return super().environ(name, **more)
        engine = {"GPUSHARE_ENGINE": "swarm" if name == "node1" else "docker", "GPUSHARE_HOME": str(self._place)}
        engine["GPUSHARE_DOCKER_HOST"] = self.member(name).address
        return super().environ(name, **engine, **self._joined.get(name, {}), **more)

    def join(self, name: str) -> None:
        """As `gpushare-node join` does it: what the host needs from then on."""
        body = {"token": self.manage("add", name).split()[3], "node": name, "release": VERSION, "schema": last_change()}
        self._joined[name] = http.post(f"{self.url}/api/v1/nodes/join/", json=body).raise_for_status().json()

    def manage(self, *words: str) -> str:
        """What `manage.py node` printed, on the web side's host."""
        done = self._manage(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def remove(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        return self._manage("remove", name, *words)

    def _manage(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "manage.py", "node", *words]
        return subprocess.run(command, cwd=ROOT, env=self.environ("web"), text=True, capture_output=True, check=False)

    def start(self, node: str) -> None:
        environ = self.environ(node)
        self._name_card(node)
        with (self.folder / f"{node}.log").open("ab") as log:
            self._services[node] = subprocess.Popen(
                [*self.member(node).within(), sys.executable, str(ROOT / "manage.py"), "runscheduler"],
                cwd="/", env=environ, stdout=log, stderr=log,
            )  # fmt: skip

    def _name_card(self, node: str) -> None:
        """What is simulated is a file, whose name the manager gives to programs on all nodes: that of its own."""
        ours, theirs = ("{}x{}".format(*sim.parse(CARDS[name])) for name in (node, "node1"))
        card = simulated_card(CARDS[node], self.home(node), ROOT / ".build").parent
        if not (card / theirs).exists():
            (card / theirs).touch()  # a card's file is opened only where it is no link
            self.member(node).mount(self._place / "card" / ours, self._place / "card" / theirs)

    def start_all(self) -> None:
        self.start("node1")
        self.start_web()
        until(lambda: (self.home("node1") / "admin-token").exists())
        until(lambda: self.is_alive("node1"), every=0.5)
        self.postgres.as_admin("postgres", self.manage("setup"))
        for name in list(CARDS)[1:]:
            self.join(name)
            self.start(name)
        until(lambda: self.alive() >= set(CARDS), every=0.5)
        until(self.knows_the_plugin, every=0.5)

    def knows_the_plugin(self) -> bool:
        """Whether the Swarm does, of each of its nodes: Docker tells what it has within half a minute."""
        with suppress(*AWAY):
            nodes = [each for each in self.swarm.nodes(self.leader()) if each["Status"]["State"] == "ready"]
            plugins = [each["Description"]["Engine"].get("Plugins") or () for each in nodes]
            return len(nodes) == len(CARDS) and all(
                any(each["Name"] == "gpushare" for each in of_one) for of_one in plugins
            )
        return False

    def leader(self) -> Member:
        return next((each for each in self.swarm.members if self.swarm.ready(each)), self.swarm.members[0])

    # ---- what is asked of it ----

    def give(self, *command: str, mib: int = 300, user: str = "", **fields: Any) -> Any:
        """Launches a container that names no node."""
        body = {"image": IMAGE, "command": list(command), "gpu_memory": mib << 20, **fields}
        return self.api("POST", "containers/", body, user)

    def holding(self, mib: int, user: str = "", *, seconds: float = 3600, **fields: Any) -> Any:
        """One that takes what its quota has room for, and keeps it so long."""
        size = f"{mib - 70}MiB"
        return self.give("workload", "--bytes", size, "--chunks", "1", "--check", "1MiB", "--hold", str(seconds),
                         mib=mib, user=user, **fields)  # fmt: skip

    def until_it_is(self, made: Any, *states: str) -> Any:
        ends = {"failed", "killed", "exited", *states}
        found = until(lambda: (now := self.container(made))["state"] in ends and now)
        assert found["state"] in states, (found, self.ask("GET", f"containers/{made['id']}/logs/").text)
        return found

    def of_launches(self, name: str) -> dict[str, str]:
        """What the engine of a node has of ours: launch → state."""
        found = self.member(name).api.containers(all=True, filters={"label": LABEL})
        return {each["Labels"][LABEL]: each["State"] for each in found}

    def services(self) -> list[str]:
        """Launches that the Swarm has an order for."""
        return [each["Spec"]["Labels"][LABEL] for each in self.leader().api.services(filters={"label": LABEL})]

    def availability(self, name: str) -> str:
        """Of a node, as the Swarm has it: active, or pause."""
        nodes = self.swarm.nodes(self.leader())
        return str(next(each["Spec"]["Availability"] for each in nodes if each["Description"]["Hostname"] == name))

    # ---- what befalls it ----

    def kill_engine(self, name: str) -> None:
        """With all that runs there: each container's shim would outlive it, and on a host that died nothing does."""
        member = self.member(name)
        running = member.api.containers(filters={"label": LABEL}, quiet=True)
        pids = []
        for each in running:
            with suppress(docker.errors.APIError):
                pids.append(member.api.inspect_container(each["Id"])["State"]["Pid"])
        member.kill()
        for pid in filter(None, pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        for member in self.swarm.members:
            member.mend()
            member.restore()
        super().close()


@contextmanager
def three_nodes() -> Iterator[Three]:
    """All of it up."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="gs3-"))  # as short as sockets need it
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        place = folder / "h"
        place.mkdir()
        swarm = stack.enter_context(lab(DECLARED, image=False, home=place))
        libraries = [ROOT / ".build" / "libgpushare.so", ROOT / ".build" / "sim" / "libcuda.so.1"]
        for member in swarm.members:
            build_image(member.api, IMAGE, [ROOT / ".build" / "workload"], mounted=libraries)
        postgres = stack.enter_context(running_postgres(address=swarm.outside, like=with_tables()))
        redis = stack.enter_context(running_redis(swarm.outside))
        made = Three(folder, swarm, place, postgres, redis)
        stack.callback(made.close)
        made.start_all()
        yield made
