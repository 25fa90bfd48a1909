"""Three Docker engines that are a Swarm, on one machine: each in a network of its own, joined by a bridge.

    with lab([{"gpu0_mib": 5120}, {"gpu0_mib": 2048}, {}]) as swarm:    # what each node declares
        swarm.members[0].api.create_service(…)

Each engine has its own socket, folders, containerd, host name, plugins (`member.folder / "plugins"` is what it sees as
/run/docker/plugins) and address; the first has begun the Swarm, and all are managers, so that any one of them may
fall. The fixture is `why_no_lab`: a sentence where this machine lets nobody make it. Everything is ended by its pid.

`lab(…, home=PLACE)` is for schedulers within the members (`member.within()`): each finds a folder of its own at that
one place, as hosts do, and reaches this machine at `swarm.outside`. `member.cut()` takes its network away.
"""

import contextlib
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import docker
import docker.errors
import requests.exceptions

from tests.support.dockerd import IMAGE, PLUGINS, Dockerd, build_image, have_dockerd, with_mounts
from tests.support.eventually import until

SUBNET = "172.31.253"  # of the bridge; the members are .1, .2 and .3

AWAY = (docker.errors.DockerException, requests.exceptions.RequestException)
_serial = itertools.count()


class Member(Dockerd):
    """One engine of the Swarm; `declared` are its generic resources: kind → how many."""

    def __init__(
        self, folder: Path, number: int, network: str, declared: Mapping[str, int], home: Path | None = None
    ) -> None:
        super().__init__(folder)
        self._cable = _cable(network)
        (folder / "home").mkdir(mode=0o750)
        self.name, self.ip = f"node{number}", f"{SUBNET}.{number}"
        self._network, self.declared = network, dict(declared)
        self._mounts = {PLUGINS: folder / "plugins", **({str(home): folder / "home"} if home else {})}
        (folder / "plugins").mkdir()
        self.configure("{}")

    def configure(self, text: str) -> None:
        """What stands in its daemon.json from its next start on."""
        (self.folder / "daemon.json").write_text(text)

    def _before(self) -> list[str]:
        # Not `ip netns exec`: that shows a /sys without control groups.
        then = f"hostname {self.name} && exec nsenter --net=/run/netns/{self._network}"
        return with_mounts(self._mounts, "--uts", then=then)

    def _flags(self) -> list[str]:
        declared = [f"--node-generic-resource={kind}={many}" for kind, many in self.declared.items()]
        return [f"--config-file={self.folder}/daemon.json", *declared]

    def within(self) -> list[str]:
        """What a program is to be started by that runs on this host, beside its engine, which has to run."""
        return ["nsenter", f"--target={self._process.pid}", "--mount", "--uts", "--net", "--"]

    def mount(self, what: Path, where: Path) -> None:
        """In its mounts, which it has anew at each start."""
        self._mounts[str(where)] = what
        subprocess.run([*self.within(), "mount", "--bind", str(what), str(where)], check=True)

    def has_begun(self) -> bool:
        """Whether it is in its surroundings, so that others can be; it need not answer yet."""
        try:
            return Path(f"/proc/{self._process.pid}/comm").read_text() == "dockerd\n"
        except OSError:
            return False

    def cut(self) -> None:
        """Nobody reaches this host, and it reaches nobody."""
        _ip(f"link set {self._cable} down")

    def mend(self) -> None:
        _ip(f"link set {self._cable} up")

    @cached_property
    def api(self) -> docker.APIClient:
        return docker.APIClient(self.address, version="auto", timeout=60)

    @property
    def id(self) -> str:
        """What the Swarm calls it."""
        return str(self.api.info()["Swarm"]["NodeID"])

    def close(self) -> None:
        if "api" in self.__dict__:
            self.api.close()


class Lab:
    def __init__(self, members: Sequence[Member], outside: str = "") -> None:
        self.members, self.outside = members, outside

    def form(self) -> None:
        """Makes the Swarm: the first begins it, the others join as managers."""
        first, *others = self.members
        first.api.init_swarm(advertise_addr=first.ip, listen_addr=f"{first.ip}:2377")
        for other in others:
            self.join(other, by=first)
        until(lambda: self.ready(first) == len(self.members), every=0.1)

    def join(self, member: Member, *, by: Member, role: str = "Manager") -> None:
        token = by.api.inspect_swarm()["JoinTokens"][role]
        member.api.join_swarm([f"{by.ip}:2377"], token, advertise_addr=member.ip, listen_addr=f"{member.ip}:2377")

    def expel(self, name: str, *, by: Member) -> None:
        """Forgets a member that is down."""
        gone = next(node for node in self.nodes(by) if node["Description"]["Hostname"] == name)
        by.api.update_node(gone["ID"], gone["Version"]["Index"], {**gone["Spec"], "Role": "worker"})
        until(lambda: "ManagerStatus" not in by.api.inspect_node(gone["ID"]), every=0.1)
        by.api.remove_node(gone["ID"], force=True)

    def nodes(self, by: Member) -> list[dict[str, Any]]:
        return list(by.api.nodes())

    def ready(self, by: Member) -> int:
        """How many nodes this one says are there; 0 while it has no leader to ask."""
        try:
            return sum(node["Status"]["State"] == "ready" for node in self.nodes(by))
        except AWAY:
            return 0

    def leader(self) -> Member:
        """Raises StopIteration while there is none."""
        for member in self.members:
            with contextlib.suppress(*AWAY):
                for node in self.nodes(member):
                    if node.get("ManagerStatus", {}).get("Leader"):
                        return next(each for each in self.members if each.name == node["Description"]["Hostname"])
        raise StopIteration


def why_no_lab() -> str:
    """Why no such Swarm can be made here; empty if it can."""
    if why_not := have_dockerd():
        return why_not
    if shutil.which("ip") is None:
        return "no ip (iproute2) is installed"
    name = f"gpsprobe{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces cannot be made here: {made.stderr.strip()}"
    _ip(f"netns delete {name}")
    return ""


@contextlib.contextmanager
def lab(declared: Sequence[Mapping[str, int]], *, image: bool = True, home: Path | None = None) -> Iterator[Lab]:
    """A Swarm of as many engines; all have the image IMAGE. Taken away at the end. `home`: a folder that is there."""
    outside = _outside() if home else ""
    with _networks(len(declared), outside) as networks, contextlib.ExitStack() as stack:
        members = []
        for number, (network, has) in enumerate(zip(networks, declared, strict=True), 1):
            # Not below pytest's own folder: the path of a UNIX socket is 107 bytes at most.
            folder = Path(tempfile.mkdtemp(prefix=f"swarm{number}-"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            member = Member(folder, number, network, has, home)
            stack.callback(_end, member)
            member.start()
            if image:
                build_image(member.api, IMAGE)
            members.append(member)
        made = Lab(members, outside)
        made.form()
        yield made


def _end(member: Member) -> None:
    member.close()
    member.restore()
    try:
        for container in member_containers(member):
            # The Swarm removes its own at the same moment: one of the two has a 404 or a 409.
            with contextlib.suppress(docker.errors.APIError):
                member.api.remove_container(container, force=True, v=True)
        until(lambda: not member_containers(member), every=0.1)
    finally:
        member.close()
        member.stop()


def member_containers(member: Member) -> list[str]:
    member.__dict__.pop("api", None)
    return [each["Id"] for each in member.api.containers(all=True)]


@contextlib.contextmanager
def _networks(count: int, outside: str) -> Iterator[list[str]]:
    """As many network namespaces, each with an address of SUBNET, on one bridge, where this machine is `outside`."""
    mine = f"gl{os.getpid():x}-{next(_serial)}"  # an interface's name has 15 characters at most
    bridge, names = mine, [f"{mine}-{number}" for number in range(1, count + 1)]
    with contextlib.ExitStack() as stack:
        _ip(f"link add {bridge} type bridge")
        stack.callback(_ip, f"link delete {bridge}")
        _ip(f"link set {bridge} up")
        if outside:
            _ip(f"address add {outside}/24 dev {bridge}")
        for number, name in enumerate(names, 1):
            _ip(f"netns add {name}")
            stack.callback(_ip, f"netns delete {name}")
            cable = _cable(name)
            _ip(f"link add {cable} type veth peer name eth0 netns {name}")
            _ip(f"link set {cable} master {bridge} up")
            _ip(f"-n {name} address add {SUBNET}.{number}/24 dev eth0")
            if outside:
                _ip(f"-n {name} address add {outside.rpartition('.')[0]}.{number}/24 dev eth0")
            _ip(f"-n {name} link set eth0 up")
            _ip(f"-n {name} link set lo up")
        yield names


def _cable(network: str) -> str:
    """The end of it that is on the bridge."""
    return network.replace("-", "v")


def _outside() -> str:
    """An address in a network of this process's own: labs of several tests may be there at a time."""
    pid = os.getpid()
    return f"10.{200 + pid % 50}.{pid // 50 % 250}.254"


def _ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True, capture_output=True)
