"""Computing takes time on the simulated card, and the processes share it.

Shares are taken by the card's own clock, and programs give half a second of work ahead: on a busy machine, where they
run late, nothing else comes out.
"""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Mapping

import pytest

from tests.support.card import BUILD, Card, read_until
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
    card.gpus()  # from now on they are told at once
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


def test_nvml_tells_who_computes_each_sixth_of_a_second(card: Card) -> None:
    first = computing(card)
    until(lambda: [percent for _, _, percent in card.gpus()[0]["samples"]][-3:] == [100] * 3)
    assert card.gpus()[0]["busy"] == 100
    samples = card.gpus()[0]["samples"]
    assert {pid for pid, _, _ in samples} == {first.pid}
    steps = [after[1] - before[1] for before, after in zip(samples[-4:], samples[-3:], strict=False)]
    assert steps == pytest.approx([1e6 / 6] * 3, abs=2)
    second = computing(card)
    until(
        lambda: (
            {(pid, percent) for pid, _, percent in card.gpus()[0]["samples"][-2:]}
            == {(p.pid, 50) for p in (first, second)}
        )
    )
    first.kill()
    second.kill()
    until(lambda: not card.gpus()[0]["samples"] and not card.gpus()[0]["busy"])


def test_nvml_tells_only_what_is_new_since_then(card: Card) -> None:
    computing(card)
    until(lambda: len(card.gpus()[0]["samples"]) > 4)
    card.check(f"""
        import shim.sim, pathlib
        shim.sim.load_nvml(pathlib.Path({str(BUILD)!r}))
        import pynvml
        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        seen = [sample.timeStamp for sample in pynvml.nvmlDeviceGetProcessUtilization(gpu, 0)]
        later = [sample.timeStamp for sample in pynvml.nvmlDeviceGetProcessUtilization(gpu, seen[-3])]
        assert later[:2] == seen[-2:]
    """)
