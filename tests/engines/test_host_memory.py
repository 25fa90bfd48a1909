"""Lack of host memory is reported as such, whoever's limit was passed."""

from pathlib import Path

import pytest

from scheduler import clock
from scheduler.engines import host_memory, kernel_log
from scheduler.engines.host_memory import HostMemory


@pytest.fixture
def vmstat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "vmstat"
    path.write_text("pgfault 1\noom_kill 3\n")
    monkeypatch.setattr(host_memory, "VMSTAT", path)
    monkeypatch.setattr(kernel_log, "_syslog", lambda *_: -1)
    return path


def test_only_a_rise_that_is_not_long_ago_counts(vmstat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    memory = HostMemory()
    assert not memory.may_have_ended_somebody()
    vmstat.write_text("pgfault 9\noom_kill 4\n")
    assert memory.may_have_ended_somebody()
    now[0] += host_memory.LATELY - 0.1
    assert memory.may_have_ended_somebody()
    now[0] += 0.2
    assert not memory.may_have_ended_somebody()


def test_count_that_cannot_be_read_for_a_moment_has_not_risen_after_it(vmstat: Path) -> None:
    """As when no descriptor is left."""
    memory = HostMemory()
    away = vmstat.rename(vmstat.with_name("away"))
    memory.look()
    away.rename(vmstat)
    assert not memory.may_have_ended_somebody()
    vmstat.write_text("oom_kill 4\n")
    assert memory.may_have_ended_somebody()


def test_nothing_is_supposed_where_the_log_can_be_read(vmstat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The count rises for containers that passed limits of their own, too."""
    memory = HostMemory()
    monkeypatch.setattr(kernel_log, "_syslog", lambda *_: 1 << 17)
    vmstat.write_text("oom_kill 4\n")
    assert not memory.may_have_ended_somebody()


def test_kernel_that_does_not_count_is_no_reason(vmstat: Path) -> None:
    vmstat.write_text("pgfault 1\n")
    assert not HostMemory().may_have_ended_somebody()
    vmstat.unlink()
    assert not HostMemory().may_have_ended_somebody()
