"""The freezer of control groups, of both versions, by files as the kernel has them: what it does, what it refuses."""

import threading
from pathlib import Path

import pytest

from scheduler.engines.base import EngineError
from scheduler.kubernetes import freezer
from scheduler.kubernetes.freezer import Freezer
from tests.support.eventually import until

POD = "kubepods/pod1"


class Host:
    """`add` puts a process into a group; `obeys`: whether the kernel stops the group."""

    def __init__(self, root: Path, version: int) -> None:
        self.groups, self.processes = root / "groups", root / "proc"
        self.version, self.obeys = version, True
        self.freezer = Freezer(self.groups, lambda pid, name: (self.processes / str(pid) / name).read_bytes())

    def group(self, path: str) -> Path:
        return self.groups / ("freezer" if self.version == 1 else "") / path

    def add(self, pid: int, path: str) -> None:
        group = self.group(path)
        group.mkdir(parents=True, exist_ok=True)
        members = group / "cgroup.procs"
        members.write_text((members.read_text() if members.exists() else "") + f"{pid}\n")
        if self.version == 1:
            (group / "freezer.state").write_text("THAWED")
            text = f"6:freezer:/{path}\n4:memory:/elsewhere\n0::/\n"
        else:
            (group / "cgroup.freeze").write_text("0")
            (group / "cgroup.events").write_text("populated 1\nfrozen 0\n")
            text = f"0::/{path}\n"
        (self.processes / str(pid)).mkdir(parents=True)
        (self.processes / str(pid) / "cgroup").write_text(text)

    def state(self, path: str) -> str:
        return (self.group(path) / ("freezer.state" if self.version == 1 else "cgroup.freeze")).read_text()

    def kernel(self, path: str) -> None:
        """Of version 2: it stops a group a moment after it was asked to."""
        until(lambda: self.state(path) == "1", every=0.001)
        (self.group(path) / "cgroup.events").write_text("populated 1\nfrozen 1\n")


@pytest.fixture(params=[1, 2])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    return Host(tmp_path, request.param)


def test_the_groups_of_its_programs_are_stopped_and_go_on(host: Host) -> None:
    host.add(10, f"{POD}/a")
    host.add(11, f"{POD}/a/inner")
    host.add(12, f"{POD}/proxy")
    pids = [10, 11]
    assert host.freezer.groups(pids) == [host.group(f"{POD}/a")]
    kernel = threading.Thread(target=host.kernel, args=(f"{POD}/a",))
    if host.version == 2:
        kernel.start()
    host.freezer.freeze(pids, lambda pid: pid in pids)
    assert host.state(f"{POD}/a") in ("FROZEN", "1")
    assert host.state(f"{POD}/proxy") in ("THAWED", "0")
    assert host.freezer.any_stopped(pids)
    host.freezer.thaw(pids)
    assert host.state(f"{POD}/a") in ("THAWED", "0")


def test_a_group_with_strangers_is_left_alone(host: Host) -> None:
    host.add(10, f"{POD}/a")
    host.add(99, f"{POD}/a/inner")
    with pytest.raises(EngineError, match="also has others in it"):
        host.freezer.freeze([10], lambda pid: pid == 10)
    assert host.state(f"{POD}/a") in ("THAWED", "0")


def test_one_that_does_not_stop_is_let_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freezer, "WITHIN", 0.05)
    host = Host(tmp_path, 2)
    host.add(10, f"{POD}/a")
    with pytest.raises(EngineError, match="within a call of the kernel"):
        host.freezer.freeze([10], lambda pid: True)
    assert host.state(f"{POD}/a") == "0"


def test_one_that_was_asked_to_stop_and_has_not_is_known(host: Host) -> None:
    """Whoever asked for it was killed then: it stops a moment later, and nobody would let it go on."""
    host.add(10, f"{POD}/a")
    assert not host.freezer.any_stopped([10])
    group = host.group(f"{POD}/a")
    if host.version == 1:
        (group / "freezer.state").write_text("FREEZING\n")
    else:
        (group / "cgroup.freeze").write_text("1\n")
    assert host.freezer.any_stopped([10])


@pytest.mark.parametrize("path", ["", "../../kubepods/pod1/a"])
def test_where_the_hosts_groups_are_not_seen_nothing_is_stopped(host: Host, path: str) -> None:
    (host.processes / "10").mkdir(parents=True)
    (host.processes / "10" / "cgroup").write_text(f"{'6:freezer' if host.version == 1 else '0:'}:/{path}\n")
    with pytest.raises(EngineError, match="needs the host's control groups"):
        host.freezer.freeze([10], lambda pid: True)
    assert not host.freezer.any_stopped([10])
