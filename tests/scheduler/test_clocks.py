"""The host's clock is set (NTP, an admin): what is stamped of a container keeps its order and its length."""

import ast
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.db.models import Q
from django.utils import timezone

from scheduler import clock
from scheduler.clock import Clocks
from scheduler.engines.base import Condition, Status
from tests.support.host import GIB, query
from tests.support.inprocess.host import InProcess
from web.history.spans import Held, spans
from web.models import Command

ROOT = Path(__file__).resolve().parents[2]
HOURS = 8 * 3600.0
READERS = {
    ("time", "time"), ("time", "time_ns"), ("timezone", "now"), ("datetime", "now"), ("datetime", "utcnow"),
    ("time", "monotonic"), ("time", "monotonic_ns"), ("time", "clock_gettime"),
}  # fmt: skip
MAY_READ = {
    "scheduler/clock.py",
    "scheduler/card/worker.py",  # a process of its own
    "scheduler/proc.py",  # the processor time of a process
}


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the host's clock, as the scheduler and the web side read it, by so many seconds more."""
    real, by = (clock.wall, timezone.now), [0.0]
    monkeypatch.setattr(clock, "wall", lambda: real[0]() + by[0])
    monkeypatch.setattr(timezone, "now", lambda: real[1]() + timedelta(seconds=by[0]))

    def change(seconds: float) -> None:
        by[0] += seconds

    return change


def clocks(folder: Path) -> Clocks:
    return Clocks(folder, lambda call, *arguments: call(*arguments))


def test_a_containers_clock_goes_on_when_the_hosts_is_set(tmp_path: Path, set_clock) -> None:
    its = clocks(tmp_path / "clocks")
    its.begin("a")
    begun = its.now("a")
    assert abs((begun - clock.now()).total_seconds()) < 1
    for by in (HOURS, -2 * HOURS):
        set_clock(by)
        assert timedelta() <= its.now("a") - begun < timedelta(minutes=5)
    assert its.ahead("a") == pytest.approx(HOURS, abs=1)
    again = clocks(tmp_path / "clocks")  # the next scheduler
    again.begin("a")
    assert timedelta() <= again.now("a") - begun < timedelta(minutes=5)
    its.begin("b")
    its.forget_all_but(["b"])
    its.forget("b")
    assert list((tmp_path / "clocks").iterdir()) == []


def test_a_stamp_of_the_engines_is_as_old_as_it_says(tmp_path: Path, set_clock) -> None:
    its = clocks(tmp_path / "clocks")
    its.begin("a")
    set_clock(-HOURS)
    ago = its.now("a") - its.by("a", clock.wall() - 60)
    assert ago.total_seconds() == pytest.approx(60, abs=1)
    assert its.by("a", clock.wall() + 60) <= its.now("a")


def test_clocks_of_an_earlier_boot_are_begun_anew(tmp_path: Path) -> None:
    folder = tmp_path / "clocks"
    folder.mkdir()
    (folder / "a").write_text("another-boot 12.5")
    (folder / "b").write_text("torn")
    its = clocks(folder)
    its.begin("a")
    assert abs((its.now("a") - datetime.now(UTC)).total_seconds()) < 1
    assert [path.name for path in folder.iterdir()] == ["a"]


@pytest.mark.parametrize("ahead", [HOURS, -HOURS])
def test_a_clock_whose_file_is_gone_goes_on_as_its_row_says(tmp_path: Path, ahead: float) -> None:
    its = clocks(tmp_path / "clocks")
    its.begin("a", ahead)
    assert its.ahead("a") == pytest.approx(ahead, abs=1)


def test_a_clock_that_is_begun_anew_shows_no_time_before_the_last_one_that_it_gave(tmp_path: Path) -> None:
    its = clocks(tmp_path / "clocks")
    last = clock.now() + timedelta(hours=8)
    its.begin("a", 60.0, last)
    assert timedelta() <= its.now("a") - last < timedelta(minutes=5)
    its.begin("b", 60.0, clock.now() - timedelta(hours=8))
    assert its.ahead("b") == pytest.approx(60, abs=1)


@pytest.mark.parametrize("by", [HOURS, -HOURS])
async def test_a_time_limit_of_an_hour_lasts_an_hour(host: InProcess, set_clock, by: float) -> None:
    container = await host.launch("sleep", "7200", ttl_seconds=3600.0)
    set_clock(by)
    await host.passes(3000)
    assert await host.events(container, "warned", "killed") == []
    await host.passes(700)
    await host.until(container, "killed")


@pytest.mark.parametrize("by", [HOURS, -HOURS])
async def test_what_is_charged_is_what_was_held_for_as_long_as_it_was(host: InProcess, set_clock, by: float) -> None:
    container = await host.launch("workload", "--bytes", "1GiB", "--hold", "600", gpu_memory=2 * GIB)
    await host.says(container, "holding")
    set_clock(by)
    await host.eventually(lambda: abs(host.up.broker.live_containers[str(container.pk)].clock_ahead + by) < 60)
    await host.up.store.flush()

    def held() -> float:
        """Seconds."""
        end = datetime.now(UTC) + timedelta(days=1)
        found = [s for _, its in spans(Q(pk=container.pk), end - timedelta(days=7), end) for s in its]
        return sum((s.end - s.start).total_seconds() for s in found if isinstance(s, Held))

    assert 0 < await query(held) < 600
    # The keeper is a process of its own, whose clock no test can set: this is what it would say.
    live = host.up.broker.live_containers[str(container.pk)]
    host.up.containers.seen(Status(live.id, live.engine_id, Condition.ENDED, 0, finished_at=clock.wall()))
    ended = await host.until(container, "exited")
    assert timedelta() < ended.finished_at - ended.started_at < timedelta(minutes=10)
    set_clock(-by)
    assert 0 < await query(held) < 600
    events = await host.events(container)
    assert [event.at for event in events] == sorted(event.at for event in events)


@pytest.mark.parametrize("set_again", [0.0, -3 * HOURS], ids=["set once", "and set back by the boot"])
@pytest.mark.parametrize("by", [HOURS, -HOURS])
async def test_a_container_that_was_there_before_a_boot_is_charged_for_as_long_as_it_ran(
    host: InProcess, set_clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, by: float, set_again: float
) -> None:
    container = await host.launch("sleep", "600")
    await host.until(container, "running")
    set_clock(by)
    await host.eventually(lambda: abs(host.up.broker.live_containers[str(container.pk)].clock_ahead + by) < 60)
    await host.stop()
    another_boot = tmp_path / "boot_id"
    another_boot.write_text("another-boot")
    monkeypatch.setattr(clock, "BOOT_ID", another_boot)
    finished_at = clock.wall()  # it ended before the boot; what its keeper would say
    set_clock(set_again)
    await host.start()
    live = host.up.broker.live_containers[str(container.pk)]
    host.up.containers.seen(Status(live.id, live.engine_id, Condition.ENDED, 0, finished_at=finished_at))
    ended = await host.until(container, "exited")
    assert timedelta() <= ended.finished_at - ended.started_at < timedelta(minutes=10)


async def test_commands_are_carried_out_in_the_order_in_which_they_were_asked(host: InProcess, set_clock) -> None:
    container = await host.launch("sleep", "600", gpu_memory=GIB)
    await host.stop()
    for kind, arguments in (
        ("change", {"gpu_memory": 2 * GIB}), ("pause", {}), ("change", {"gpu_memory": 3 * GIB}), ("resume", {}),
    ):  # fmt: skip
        await query(Command.objects.create, kind=kind, container=container, arguments=arguments)
        set_clock(-HOURS)
    await host.start()
    await host.eventually(lambda: not host.up.broker.live_containers[str(container.pk)].paused)
    await host.settle()
    now = await host.get(container)
    assert (now.state, now.gpu_memory) == ("running", 3 * GIB)


def test_one_module_of_the_scheduler_reads_the_clocks() -> None:
    found = []
    for path in (ROOT / "scheduler").rglob("*.py"):
        if path.relative_to(ROOT).as_posix() in MAY_READ:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.value if isinstance(node, ast.Attribute) else None
            if isinstance(name, ast.Name) and (name.id, node.attr) in READERS:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []


def test_a_virtual_clock_is_what_everybody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    class Virtual(clock.Source):
        def wall(self) -> float:
            return 86400.0

        def boot(self) -> float:
            return 2.0

        def monotonic(self) -> float:
            return 3.0

    monkeypatch.setattr(clock, "_source", clock.Source())
    clock.use(Virtual())
    assert (clock.now().isoformat(), clock.boot(), clock.monotonic()) == ("1970-01-02T00:00:00+00:00", 2.0, 3.0)
