"""The card helper on a real card: memory goes to the host and comes back to the byte, whoever is killed meanwhile."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from scheduler.card.helper import CardError, CardHelper, State, Why

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
GIB = 1 << 30
LONG = 120.0

# Fills memory with a pattern and adds it up, each time it is asked.
TORCH = """
import sys, torch
chunks = [torch.arange(1 << 27, dtype=torch.int32, device="cuda") * (i + 1) for i in range(int(sys.argv[1]) * 2)]
def sums():
    return " ".join(str(int(chunk.sum(dtype=torch.int64))) for chunk in chunks)
print(sums(), flush=True)
for line in sys.stdin:
    print(sums(), flush=True)
"""
MANAGED = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, address = ctypes.c_void_p(), ctypes.c_uint64()
codes = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context),
         cuda.cuMemAllocManaged(ctypes.byref(address), ctypes.c_size_t(1 << 30), 1)]
print(codes, flush=True)
for line in sys.stdin:
    print(cuda.cuCtxSynchronize(), flush=True)
"""


@contextmanager
def program(code: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    words = [os.environ.get("GPU_TEST_PYTHON") or sys.executable, "-c", code, *arguments]
    with subprocess.Popen(words, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline()
        finally:
            process.kill()


def ask(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline()


def with_helper(play: Callable[[CardHelper], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        helper = CardHelper()
        try:
            assert await helper.why_not() == ""
            await play(helper)
        finally:
            await helper.close()

    asyncio.run(run())


@pytest.mark.parametrize("size", [4, 16, 40])
def test_memory_goes_out_and_comes_back_to_the_byte(size: int, record: Callable[[str], None]) -> None:
    with program(TORCH, str(size)) as (process, before):

        async def play(helper: CardHelper) -> None:
            figures = []
            for _ in range(2):
                locked = await helper.lock(process.pid, LONG)
                out = await helper.checkpoint(process.pid, LONG)
                assert out.state is State.CHECKPOINTED
                back = await helper.restore(process.pid, LONG)
                unlocked = await helper.unlock(process.pid, LONG)
                figures.append(
                    f"lock {locked.seconds * 1e3:.1f} ms, out {out.seconds:.2f} s, in {back.seconds:.2f} s, "
                    f"unlock {unlocked.seconds * 1e3:.1f} ms"
                )
            record(f"{size} GiB of PyTorch: " + "; again: ".join(figures))

        with_helper(play)
        assert ask(process) == before


def test_thirty_times_in_a_row(record: Callable[[str], None]) -> None:
    with program(TORCH, "1") as (process, before):

        async def play(helper: CardHelper) -> None:
            for _ in range(30):
                for step in (helper.lock, helper.checkpoint, helper.restore, helper.unlock):
                    await step(process.pid, LONG)
                assert await asyncio.to_thread(ask, process) == before

        with_helper(play)
    record("30 times out and in, 1 GiB: every sum right")


def test_managed_memory_is_refused_and_goes_on(record: Callable[[str], None]) -> None:
    with program(MANAGED) as (process, said):
        assert said == "[0, 0, 0, 0]\n"

        async def play(helper: CardHelper) -> None:
            await helper.lock(process.pid, LONG)
            with pytest.raises(CardError) as caught:
                await helper.checkpoint(process.pid, LONG)
            record(f"managed memory: {caught.value} (state {caught.value.state.name})")
            assert caught.value.why is Why.CANNOT
            await helper.unlock(process.pid, LONG)

        with_helper(play)
        assert ask(process) == "0\n"


@pytest.mark.parametrize("step", ["lock", "checkpoint", "restore", "unlock"])
def test_a_helper_that_is_killed_at_a_step_leaves_nothing_lost(step: str, record: Callable[[str], None]) -> None:
    steps = ["lock", "checkpoint", "restore", "unlock"]
    found: list[str] = []
    with program(TORCH, "8") as (process, before):

        async def play(helper: CardHelper) -> None:
            for each in steps[: steps.index(step)]:
                await getattr(helper, each)(process.pid, LONG)
            dying = CardHelper()
            call = asyncio.create_task(getattr(dying, step)(process.pid, LONG))
            await asyncio.sleep(0.4)  # into it, if it takes that long
            for worker in dying._busy:
                worker.kill()
            outcome = (await asyncio.gather(call, return_exceptions=True))[0]
            await dying.close()
            found.append(await after(helper, process.pid))
            record(f"helper killed in {step}: {outcome}; then {found[0]}")

        with_helper(play)
        if step == "restore" and not found[0].endswith("RUNNING"):
            process.kill()  # what the driver gave up can still be ended, and all of it comes back
            process.wait()
            assert_empties(record)
        else:
            assert found[0].endswith("RUNNING")
            assert ask(process) == before


async def after(helper: CardHelper, pid: int) -> str:
    """The states it goes through until it runs, or what is in the way."""
    states: list[str] = []
    try:
        while (state := await helper.state(pid, 15)) is not State.RUNNING:
            states.append(state.name)
            if state is State.CHECKPOINTED:
                await helper.restore(pid, 30)
            elif state is State.LOCKED:
                await helper.unlock(pid, 15)
            else:
                break
    except CardError as error:
        return ", then ".join([*states, str(error)])
    return ", then ".join([*states, state.name])


def assert_empties(record: Callable[[str], None]) -> None:
    query = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    end = time.monotonic() + 30
    while subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip():
        assert time.monotonic() < end, "the card still shows it"
        time.sleep(0.2)
    record("killed after that: the card is empty")
