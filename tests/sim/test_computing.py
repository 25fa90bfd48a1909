"""Computing takes time on the simulated card, and the processes share it.

Shares are taken by the card's own clock, and programs give half a second of work ahead: on a busy machine, where they
run late, nothing else comes out.
"""

import random
import signal
import subprocess
import time
from collections.abc import Mapping

import pytest

from tests.support.card import Card, read_until
from tests.support.eventually import until
from tests.support.program import Program

ALONE, OF_TWO, OF_THREE = 1.0, 0.46, 0.30
NOT_READY = 600


def computing(card: Card, *options: str) -> subprocess.Popen[str]:
    """A program that computes without end, once it does."""
    words = ("--bytes", "2MiB", "--chunks", "1", "--compute", "600", "--ahead", "500", *options)
    process = card.start(*words)
    read_until(process, "computing for")
    before = had(card, process.pid)
    until(lambda: had(card, process.pid) > before + 50e6)  # all that it gives ahead is given
    return process


def had(card: Card, pid: int) -> int:
    """Nanoseconds of a card of its own, on whichever GPU."""
    return sum(gpu["had"][1][pid] for gpu in card.gpus())


def expected(shares: Mapping[subprocess.Popen[str], float]) -> Mapping[int, object]:
    return {process.pid: pytest.approx(share, rel=0.02) for process, share in shares.items()}


def until_shared(card: Card, shares: Mapping[subprocess.Popen[str], float]) -> None:
    until(lambda: card.shares(0.2) == expected(shares))


class Asker(Program):
    """Locks and unlocks others, as the card's helper does."""

    def lock(self, pid: int, timeout_ms: int = 0) -> int:
        args = {"bytes": timeout_ms.to_bytes(4, "little").hex().ljust(128, "0")}
        return self.result("cuCheckpointProcessLock", pid, args)

    def unlock(self, pid: int) -> int:
        return self.result("cuCheckpointProcessUnlock", pid, None)


@pytest.fixture
def asker(card: Card) -> Asker:
    asker = Asker(card, card.env())
    asker("cuInit", 0)
    return asker


def test_those_who_compute_at_once_get_on_alike_and_lose_a_little(card: Card) -> None:
    first = computing(card)
    assert card.shares(0.5) == expected({first: ALONE})
    second = computing(card)
    assert card.shares(0.5) == expected({first: OF_TWO, second: OF_TWO})
    third = computing(card)
    assert card.shares(0.5) == expected({first: OF_THREE, second: OF_THREE, third: OF_THREE})


@pytest.mark.parametrize("card", ["sim:2x1GiB"], indirect=True)
def test_each_gpu_has_its_own_time(card: Card) -> None:
    first, second = computing(card), computing(card, "--gpu", "1")
    assert card.shares(0.3, gpu=0) == expected({first: ALONE, second: 0})
    assert card.shares(0.3, gpu=1) == expected({first: 0, second: ALONE})


def test_a_locked_one_gets_nothing_and_the_others_all(card: Card, asker: Asker) -> None:
    first, second = computing(card), computing(card)
    assert asker.lock(second.pid) == 0
    assert card.shares(0.3) == expected({first: ALONE, second: 0})
    assert asker.unlock(second.pid) == 0
    until_shared(card, {first: OF_TWO, second: OF_TWO})


def test_a_killed_one_has_its_work_dropped(card: Card) -> None:
    first, second = computing(card), computing(card, "--kernel", "60000")  # hours of work
    assert card.shares(0.3) == expected({first: OF_TWO, second: OF_TWO})
    second.kill()
    until_shared(card, {first: ALONE})


def test_a_frozen_one_has_its_work_done_and_then_rests(card: Card) -> None:
    first, second = computing(card), computing(card)
    second.send_signal(signal.SIGSTOP)
    until_shared(card, {first: ALONE, second: 0})
    second.send_signal(signal.SIGCONT)
    until_shared(card, {first: OF_TWO, second: OF_TWO})


def test_whoever_is_killed_or_frozen_at_any_moment_holds_up_nobody(card: Card) -> None:
    first, frozen = computing(card), []
    for number in range(24):
        other = card.start("--bytes", "2MiB", "--compute", "600", "--kernel", "0.02", "--ahead", str(1 + number % 3))
        read_until(other, "computing for")
        time.sleep(random.random() / 50)
        other.send_signal(signal.SIGKILL if number % 2 else signal.SIGSTOP)
        frozen += [other] if number % 2 == 0 else []
    until_shared(card, {first: ALONE} | dict.fromkeys(frozen, 0))


def test_a_lock_waits_until_all_that_was_given_is_done(card: Card, asker: Asker) -> None:
    giver = card.python("""
from tests.support.cuda import *
cuda = Cuda()
print("ready", flush=True)
while input():
    cuda.compute(10, times=100)
    print("given", flush=True)
""")
    read_until(giver, "ready")
    card.gpus()  # from now on they are reported at once
    assert giver.stdin is not None
    giver.stdin.write("give\n")
    giver.stdin.flush()
    read_until(giver, "given")
    assert asker.lock(giver.pid, timeout_ms=20) == NOT_READY  # and it goes on as if nothing had been
    assert 0 < had(card, giver.pid) < 1e9
    assert asker.lock(giver.pid, timeout_ms=60_000) == 0
    assert had(card, giver.pid) == 1e9


def test_launches_return_at_once_until_too_many_are_outstanding(card: Card) -> None:
    card.check("""
        cuda = Cuda()
        cuda.compute(10, times=1024)
        assert cuda.had()[1] < 5
        cuda.compute(10, times=50)
        assert 0.5 <= cuda.had()[1] < 5
    """)


def test_streams_events_and_copies_wait_for_kernels(card: Card) -> None:
    card.check("""
        cuda = Cuda()
        first, second, begin, end, memory = c_void_p(), c_void_p(), c_void_p(), c_void_p(), cuda.alloc(MIB)
        for stream in (first, second):
            cuda("cuStreamCreate", byref(stream), 1)
        for event in (begin, end):
            cuda("cuEventCreate", byref(event), 0)
        cuda("cuEventRecord", begin, first)
        cuda.compute(400, stream=first)
        cuda("cuEventRecord", end, first)
        took = ctypes.c_float()
        assert cuda.code("cuEventQuery", begin) == cuda.code("cuStreamQuery", second) == 0
        assert cuda.code("cuEventQuery", end) == cuda.code("cuStreamQuery", first) == 600
        assert cuda.code("cuEventElapsedTime", byref(took), begin, end) == cuda.code("cuStreamQuery", None) == 600
        cuda("cuStreamWaitEvent", second, end, 0)
        assert cuda.code("cuStreamQuery", second) == 600
        cuda("cuStreamSynchronize", second)
        cuda("cuEventElapsedTime", byref(took), begin, end)
        assert took.value >= 399 and cuda.had()[1] == 0.4
        for wait in (
            lambda: cuda("cuEventSynchronize", end),
            lambda: cuda("cuStreamSynchronize", None),
            lambda: cuda("cuCtxSynchronize"),
            lambda: cuda.read(memory, 8),
            lambda: cuda.free(memory),
        ):
            before = cuda.had()[1]
            cuda.compute(50, stream=first)
            cuda("cuEventRecord", end, first)
            wait()
            assert round(cuda.had()[1] - before, 6) == 0.05
    """)


def test_a_graph_s_kernels_take_time(card: Card) -> None:
    card.check("""
        cuda = Cuda()
        stream, graph, exec = c_void_p(), c_void_p(), c_void_p()
        cuda("cuStreamCreate", byref(stream), 1)
        cuda("cuStreamBeginCapture_v2", stream, 0)
        cuda.compute(20, times=3, stream=stream)
        cuda("cuStreamEndCapture", stream, byref(graph))
        assert cuda.had()[1] == 0
        cuda("cuGraphInstantiateWithFlags", byref(exec), graph, c_uint64(0))
        cuda("cuGraphLaunch", exec, stream)
        assert cuda.code("cuStreamQuery", stream) == 600
        cuda("cuStreamSynchronize", stream)
        assert round(cuda.had()[1], 6) == 0.06
    """)


# ---- what NVML tells ----


PERIOD = 1e6 / 6  # µs


def samples_of(card: Card, since: int = 0) -> dict[int, tuple[int, int]]:
    """Process → when it was seen last (µs since the epoch), and its per cent of all the time `since` then."""
    samples = card.gpus(since)[0]["samples"]
    assert len({pid for pid, _, _ in samples}) == len(samples)
    return {pid: (at, percent) for pid, at, percent in samples}


def test_nvml_tells_how_much_of_all_the_time_since_then_a_process_computed(card: Card) -> None:
    only = computing(card)
    until(lambda: card.gpus()[0]["busy"] == 100)
    begun, _ = samples_of(card)[only.pid]
    at, percent = until(lambda: samples_of(card, begun))[only.pid]
    assert percent == 100
    assert (at - begun) / PERIOD == pytest.approx(round((at - begun) / PERIOD), abs=1e-4)
    until(lambda: samples_of(card, begun)[only.pid][0] > begun + 5 * PERIOD)
    assert samples_of(card, begun)[only.pid][1] == card.gpus()[0]["busy"] == 100
    only.send_signal(signal.SIGSTOP)
    until(lambda: samples_of(card, begun)[only.pid][1] <= 80)
    only.kill()
    until(lambda: not samples_of(card) and not card.gpus()[0]["busy"])  # five seconds of samples are kept


def test_nvml_tells_what_a_process_computed_that_has_ended(card: Card) -> None:
    only = computing(card)
    until(lambda: only.pid in (now := samples_of(card)) and now[only.pid][1] > 0)  # a first look may have little of it
    only.kill()
    only.wait()
    until(lambda: card.used() == 0)
    _, percent = samples_of(card)[only.pid]
    assert percent > 0


def test_nvml_tells_only_what_is_new_since_then(card: Card) -> None:
    only = computing(card)
    until(lambda: samples_of(card))
    only.send_signal(signal.SIGSTOP)
    until(lambda: card.gpus()[0]["busy"] == 0)
    last, _ = samples_of(card)[only.pid]
    assert samples_of(card, last - 1)[only.pid][0] == last
    assert samples_of(card, last) == {}


def test_nvml_names_one_of_those_who_computed_in_a_sixth_of_a_second(card: Card) -> None:
    both, named = {computing(card).pid, computing(card).pid}, []
    last = max(at for at, _ in until(lambda: samples_of(card)).values())

    def look() -> dict[int, tuple[int, int]] | None:
        """Of one period; None: nothing is new, or several have passed."""
        nonlocal last
        since, its = last, samples_of(card, last)
        last = max((at for at, _ in its.values()), default=last)
        return its if round((last - since) / PERIOD) == 1 else None

    for _ in range(20):
        ((pid, (_, percent)),) = until(look).items()
        assert percent == 100
        named.append(pid)
    assert set(named) == both
