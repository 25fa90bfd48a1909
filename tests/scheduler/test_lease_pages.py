"""What the next scheduler finds in a lease page, wherever the last one was killed."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

import shim.binding.slots
from scheduler.core.state import State
from scheduler.sessions import lease_pages
from scheduler.sessions.broker import Broker
from scheduler.sessions.lease_pages import Lease, LeasePage, slots
from scheduler.sessions.live_containers import LiveContainer, Program, Session
from shim.binding import PAGE_NAME

CALLS = ("set_granted", "set_measured", "lease_extend", "lease_take_back", "lease_settle")


class Killed(BaseException):
    """As if the scheduler had been killed there."""


@pytest.fixture
def page() -> Iterator[LeasePage]:
    page = LeasePage.create([b"\1" * 16])
    yield page
    page.close()


def taken_over(page: LeasePage, room: int = 1000) -> Lease:
    """By the next scheduler, which has nothing but the page."""
    return Lease.taken_over(LeasePage.adopt(os.dup(page.fileno()))[0], 0, room)


def kill_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """The scheduler is killed after it has changed the page so often."""
    left = iter([False] * steps)

    class Library:
        def __getattr__(self, name: str) -> Callable[..., object]:
            call: Callable[..., object] = getattr(real, name)
            if name in CALLS and next(left, True):
                raise Killed
            return call

    real = shim.binding.slots._lib
    monkeypatch.setattr(shim.binding.slots, "_lib", Library())


def killed(monkeypatch: pytest.MonkeyPatch, steps: int, act: Callable[[], object]) -> None:
    with monkeypatch.context() as patch:
        kill_after(patch, steps)
        try:
            act()
        except Killed:
            return


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_grant_that_is_cut_off_is_sent_again_or_never_was(
    page: LeasePage, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    lease = Lease(page[0], 0)
    killed(monkeypatch, steps, lambda: lease.grant(10, idle=5))
    after = taken_over(page)
    assert after.granted == after.used == (10 if steps else 0)  # no headroom, and no byte that nobody holds
    after.said_hello()
    assert after.tell_again(10) is bool(steps)  # it repeats its NEED
    assert not after.tell_again(10)  # not twice
    assert after.granted == (10 if steps else 0)


@pytest.mark.parametrize("steps", [0, 1])
def test_take_back_that_is_cut_off_loses_nothing(page: LeasePage, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    lease = Lease(page[0], 0)
    lease.grant(0, idle=10)
    page[0].reserve(4)
    killed(monkeypatch, steps, lease.take_back)
    after = taken_over(page)
    assert (after.granted, after.used, after.headroom) == (4, 4, 0)


def test_what_is_out_is_neither_used_nor_held(page: LeasePage) -> None:
    lease = Lease(page[0], 0)
    lease.grant(0, idle=10)
    page[0].reserve(4)
    assert (lease.used, lease.held) == (4, 10)
    lease.out = 4
    assert (lease.used, lease.held) == (0, 6)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_what_was_measured_is_known_to_the_next_scheduler_and_given_back(
    page: LeasePage, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    lease = Lease(page[0], 0)
    lease.grant(0, idle=10)
    page[0].reserve(4)
    killed(monkeypatch, steps, lambda: lease.charge(3))
    after = taken_over(page)
    measured = 3 if steps else 0
    assert (after.granted, after.used, after.measured) == (4 + measured, 4 + measured, measured)
    assert after.discharge(3) == measured
    assert (after.granted, after.used) == (4, 4)


def test_grant_that_was_heard_is_not_sent_again(page: LeasePage) -> None:
    Lease(page[0], 0).grant(10)
    page[0].accept(10)
    after = taken_over(page)
    after.said_hello()
    assert not after.tell_again(10)
    assert (after.granted, after.used) == (10, 10)


def test_grant_that_nobody_asks_for_again_comes_back(page: LeasePage) -> None:
    Lease(page[0], 0).grant(10)
    after = taken_over(page)
    after.said_hello()
    assert not after.tell_again(11)
    assert after.give_up_unheard() == 10
    assert (after.granted, after.used) == (0, 0)


@pytest.mark.parametrize("asks", [7, 11])
def test_grant_that_was_not_heard_and_is_freed_all_the_same_comes_back_once(page: LeasePage, asks: int) -> None:
    """No honest program does that. The lease is not to be less than nothing, which no page can say."""
    lease = Lease(page[0], 0)
    lease.grant(10)
    lease.said_hello()
    page[0].release(10)
    assert lease.take_back() == 10
    assert not lease.tell_again(asks)
    assert lease.give_up_unheard() == 0
    assert (lease.granted, lease.used, lease.check()) == (0, 0, False)


def test_nothing_comes_back_from_a_forged_page_as_not_heard(page: LeasePage) -> None:
    lease = Lease(page[0], 0)
    lease.grant(10, idle=5)
    page[0].extend(1)
    lease.said_hello()
    assert not lease.tell_again(10)
    assert lease.give_up_unheard() == 0
    assert (lease.granted, lease.used, lease.forged) == (15, 15, True)


def test_page_that_is_clamped_at_take_over_is_not_called_forged_when_its_process_frees(page: LeasePage) -> None:
    lease = Lease(page[0], 0)
    lease.grant(0, idle=10)
    page[0].reserve(10)
    after = taken_over(page, room=6)  # its quota was lowered, say
    assert (after.granted, after.used) == (6, 6)
    for left in (9, 8, 7, 6, 5):
        page[0].release(1)
        assert after.used == min(6, left)
        assert not after.check()
    assert after.take_back() == 1
    assert (after.granted, after.used, after.forged) == (5, 5, False)


def test_page_in_which_somebody_raised_the_limit_is_forged(page: LeasePage) -> None:
    lease = Lease(page[0], 0)
    lease.grant(0, idle=10)
    page[0].extend(1)
    assert lease.check()
    assert (lease.used, lease.headroom, lease.take_back()) == (10, 0, 0)
    assert not page[0].reserve(1)


WORDS = ("taken", "limit", "bound", "granted", "accepted", "measured", "overhead", "peak", "waiting")


@pytest.mark.parametrize("words", [WORDS, *[(word,) for word in WORDS], ("bound", "granted", "measured")])
@pytest.mark.parametrize("value", [0, 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_whatever_a_program_wrote_the_page_brings_no_more_than_there_is_room_for(
    words: tuple[str, ...], value: int
) -> None:
    page = LeasePage.create([b"\1" * 16])
    page[0].grant(10)
    page[0].extend(10)
    for word in words:
        getattr(shim.binding.slots._lib, f"set_{word}")(page[0]._raw, value)
    lease = taken_over(page, room=1000)
    lease.said_hello()
    for step in (lease.check, lease.take_peak, lease.take_back, lambda: lease.charge(5), lambda: lease.discharge(5)):
        step()
        lease.grant(2**20, idle=2**20)
        assert 0 <= lease.overhead <= lease.used <= lease.granted <= 1000 + 5 + 5 * 2**21
        assert lease.headroom >= 0
        assert lease.waiting >= 0
    page.close()


def test_slots_are_found_by_uuid() -> None:
    gpus = [f"GPU-00000000-0000-0000-0000-00000000000{n}" for n in range(4)]
    page = LeasePage.create([bytes(15) + bytes([n]) for n in (2, 0, 1)])
    assert slots(page, gpus) == {gpus[0]: 1, gpus[1]: 2, gpus[2]: 0}
    assert slots(page, gpus[3:]) == {}
    page.close()


def test_process_that_takes_while_its_page_is_brought_up_to_date_stops_nothing(
    page: LeasePage, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = LiveContainer("c", "c", {"GPU-0": 1000})
    lease = Lease(page[0], 0)
    lease.grant(0, idle=100)
    live.sessions[1] = session = Session(1, "c", 1, Program(1, 1, 1), -1, page, {"GPU-0": lease})

    def taking(lease: Lease) -> int:
        page[0].reserve(1)
        return lease.granted - lease.headroom

    monkeypatch.setattr(Lease, "used", property(taking))
    Broker(Mock(), {}, State(), Mock()).show(live, [session])
    assert page[0].elsewhere == 0


def test_what_only_has_the_name_of_a_page_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's root names a device of the host like that, and holds it by O_PATH, which asks no driver."""
    name = tmp_path / f"memfd:{PAGE_NAME}-{os.getpid()}-0 (deleted)"
    os.mkfifo(name)
    monkeypatch.setattr(lease_pages, "_page_in", lambda pid, text: re.fullmatch(re.escape(bytes(name)) + b"()", text))
    held = os.open(name, os.O_PATH)
    assert lease_pages.find(os.getpid(), "") is None
    os.close(held)


def test_the_page_itself_is_opened() -> None:
    page = lease_pages.make(os.getpid(), "0", [])
    found = lease_pages.find(os.getpid(), "0")
    assert found is not None
    assert os.fstat(found).st_ino == lease_pages.inode(page)
    os.close(found)
    page.close()
