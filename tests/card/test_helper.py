"""The card helper against the simulated driver: real workers, real programs."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from scheduler.card import helper as card_helper
from scheduler.card.helper import CardError, CardHelper, State, Why
from tests.card.test_guardian import program
from tests.card.workers import worker
from tests.support.card import CONTEXT, MIB, Card
from tests.support.eventually import eventually
from tests.support.program import Program

LOCK, CHECKPOINT, RESTORE, UNLOCK = 1, 2, 3, 4
FAILS, HANGS, PROCESS_DIES, ASKER_DIES = 1, 2, 3, 4
LONG = 30.0


@pytest.fixture
def quick(card: Card) -> Card:
    card.order("sim_card_speed", 0, 0)
    return card


@pytest.fixture
def cuda(quick: Card) -> Program:
    program = Program(quick, quick.env())
    program("cuInit", 0)
    context = program.new("cuDevicePrimaryCtxRetain", 0)
    program("cuCtxSetCurrent", context)
    return program


@pytest.fixture
async def helper(quick: Card) -> AsyncIterator[CardHelper]:
    helper = CardHelper(quick.env())
    yield helper
    await helper.close()


async def test_memory_goes_out_and_comes_back_to_the_byte(quick: Card, cuda: Program, helper: CardHelper) -> None:
    address = cuda.new("cuMemAlloc_v2", 64 * MIB)
    cuda("cuMemcpyHtoD_v2", address, {"bytes": "c0ffee"}, 3)
    held = quick.used()
    assert held == 64 * MIB + CONTEXT
    await helper.lock(cuda.pid, LONG)
    assert (await helper.checkpoint(cuda.pid, LONG)).state is State.CHECKPOINTED
    assert quick.used() == 0
    assert (await helper.restore(cuda.pid, LONG)).state is State.LOCKED
    assert quick.used() == held
    assert (await helper.unlock(cuda.pid, LONG)).state is State.RUNNING
    assert cuda("cuMemcpyDtoH_v2", {"bytes": "000000"}, address, 3)[0] == "c0ffee"
    assert cuda.result("cuMemFree_v2", address) == 0
    assert quick.used() == CONTEXT


async def test_what_came_back_is_given_back_whole_whoever_took_its_place(
    quick: Card, cuda: Program, helper: CardHelper
) -> None:
    addresses = [cuda.new("cuMemAlloc_v2", 32 * MIB) for _ in range(3)]
    await helper.lock(cuda.pid, LONG)
    await helper.checkpoint(cuda.pid, LONG)
    other = quick.start("--bytes", "256MiB")
    assert other.wait() == 0
    neighbour = Program(quick, quick.env())
    neighbour("cuInit", 0)
    neighbour("cuCtxSetCurrent", neighbour.new("cuDevicePrimaryCtxRetain", 0))
    neighbour.new("cuMemAlloc_v2", 512 * MIB)
    await helper.restore(cuda.pid, LONG)
    await helper.unlock(cuda.pid, LONG)
    for address in addresses:
        assert cuda.result("cuMemFree_v2", address) == 0
    assert quick.gpus()[0]["held"] == {cuda.pid: CONTEXT, neighbour.pid: 512 * MIB + CONTEXT}


async def test_calls_of_a_locked_process_wait(cuda: Program, helper: CardHelper) -> None:
    await helper.lock(cuda.pid, LONG)
    cuda.start_new("cuMemAlloc_v2", MIB)
    answer = asyncio.create_task(asyncio.to_thread(cuda.receive))
    assert await helper.state(cuda.pid, LONG) is State.LOCKED
    await asyncio.sleep(0.05)  # it may only ever be found not to have waited
    assert not answer.done()
    await helper.unlock(cuda.pid, LONG)
    assert (await answer)["result"] == 0


async def test_no_room_leaves_it_out_and_whole(quick: Card, cuda: Program, helper: CardHelper) -> None:
    cuda.new("cuMemAlloc_v2", 3 << 30)
    await helper.lock(cuda.pid, LONG)
    await helper.checkpoint(cuda.pid, LONG)
    other = Program(quick, quick.env())
    other("cuInit", 0)
    other("cuCtxSetCurrent", other.new("cuDevicePrimaryCtxRetain", 0))
    address = other.new("cuMemAlloc_v2", 3 << 30)
    with pytest.raises(CardError, match="no room") as caught:
        await helper.restore(cuda.pid, LONG)
    assert (caught.value.why, caught.value.state) == (Why.NO_ROOM, State.CHECKPOINTED)
    other("cuMemFree_v2", address)
    await helper.restore(cuda.pid, LONG)
    assert quick.gpus()[0]["held"][cuda.pid] == (3 << 30) + CONTEXT


async def test_managed_memory_is_refused_and_can_go_on(cuda: Program, helper: CardHelper) -> None:
    cuda.new("cuMemAllocManaged", 4 * MIB, 1)
    await helper.lock(cuda.pid, LONG)
    with pytest.raises(CardError, match="managed memory") as caught:
        await helper.checkpoint(cuda.pid, LONG)
    assert (caught.value.why, caught.value.state) == (Why.CANNOT, State.LOCKED)
    await helper.unlock(cuda.pid, LONG)
    assert cuda.result("cuCtxSynchronize") == 0


async def test_steps_out_of_order_are_refused(cuda: Program, helper: CardHelper) -> None:
    for step in (helper.checkpoint, helper.restore, helper.unlock):
        with pytest.raises(CardError) as caught:
            await step(cuda.pid, LONG)
        assert (caught.value.why, caught.value.state) == (Why.WRONG_STATE, State.RUNNING)


async def test_a_process_without_a_card_or_dead_is_reported(cuda: Program, helper: CardHelper) -> None:
    cuda.process.kill()
    cuda.process.wait()
    for pid in (cuda.pid, os.getpid()):
        with pytest.raises(CardError, match="does not use a card, or has ended") as caught:
            await helper.lock(pid, LONG)
        assert caught.value.why is Why.NOT_THERE


async def test_a_hung_call_costs_its_worker_and_nobody_else(quick: Card, cuda: Program, helper: CardHelper) -> None:
    quick.order("sim_card_fault", CHECKPOINT, HANGS)
    await helper.lock(cuda.pid, LONG)
    with pytest.raises(CardError, match="did not answer a checkpoint") as caught:
        await helper.checkpoint(cuda.pid, 3.0)
    assert caught.value.why is Why.HUNG
    assert await helper.why_not() == ""


async def test_a_frozen_process_hangs_its_asker_until_it_goes_on(cuda: Program, helper: CardHelper) -> None:
    os.kill(cuda.pid, signal.SIGSTOP)
    with pytest.raises(CardError) as caught:
        await helper.checkpoint(cuda.pid, 3.0)
    assert caught.value.why is Why.HUNG
    os.kill(cuda.pid, signal.SIGCONT)
    assert (await helper.lock(cuda.pid, LONG)).state is State.LOCKED


@pytest.mark.parametrize("step", ["lock", "checkpoint", "restore", "unlock"])
async def test_an_asker_that_dies_leaves_what_it_asked_for_done(
    quick: Card, cuda: Program, helper: CardHelper, step: str
) -> None:
    steps = ["lock", "checkpoint", "restore", "unlock"]
    for each in steps[: steps.index(step)]:
        await getattr(helper, each)(cuda.pid, LONG)
    quick.order("sim_card_fault", steps.index(step) + 1, ASKER_DIES)
    with pytest.raises(CardError, match="helper was ended") as caught:
        await getattr(helper, step)(cuda.pid, LONG)
    assert caught.value.why is Why.FAILED
    # Whoever asks next waits until that is through.
    await getattr(helper, steps[(steps.index(step) + 1) % 4])(cuda.pid, LONG)


@pytest.mark.parametrize("step", ["lock", "checkpoint", "restore", "unlock"])
async def test_process_that_dies_meanwhile_is_shown(quick: Card, cuda: Program, helper: CardHelper, step: str) -> None:
    steps = ["lock", "checkpoint", "restore", "unlock"]
    for each in steps[: steps.index(step)]:
        await getattr(helper, each)(cuda.pid, LONG)
    quick.order("sim_card_fault", steps.index(step) + 1, PROCESS_DIES)
    with pytest.raises(CardError) as caught:
        await getattr(helper, step)(cuda.pid, LONG)
    assert caught.value.why is Why.NOT_THERE
    assert cuda.process.wait() == -signal.SIGKILL
    await asyncio.to_thread(quick.wait_until_empty)


async def test_a_machine_without_the_calls_says_so(tmp_path: object) -> None:
    helper = CardHelper({"LD_LIBRARY_PATH": str(tmp_path), "PATH": os.environ["PATH"]})
    assert (await helper.why_not()).startswith("CUDA's checkpoint calls cannot be used here: ")


async def test_who_asked_may_go_and_what_was_asked_for_is_done(quick: Card, cuda: Program, helper: CardHelper) -> None:
    """A scheduler that stops within a transfer: the driver promises nothing where a restore is broken off."""
    cuda.new("cuMemAlloc_v2", 512 * MIB)
    quick.order("sim_card_speed", 1 << 30, 1 << 30)
    leaving = CardHelper(quick.env())
    await leaving.lock(cuda.pid, LONG)
    call = asyncio.create_task(leaving.checkpoint(cuda.pid, LONG))
    await eventually(lambda: leaving._busy)  # from then on the worker has been asked
    call.cancel()
    await leaving.close()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await helper.restore(cuda.pid, LONG)).state is State.LOCKED  # waits its turn


async def test_a_worker_that_is_left_lets_nobody_go_whom_it_has_stopped(quick: Card, helper: CardHelper) -> None:
    """Who asked it was called off, and lives: they are stopped for others, or are just being moved."""
    stopped, slow = program(quick), program(quick)
    slow.new("cuMemAlloc_v2", 512 * MIB)
    quick.order("sim_card_speed", 1 << 30, 1 << 30)
    calls = CardHelper(quick.env())
    await calls.stop(stopped.pid, LONG)
    (worker,) = calls._idle
    await calls.lock(slow.pid, LONG)
    move = asyncio.create_task(calls.checkpoint(slow.pid, LONG))
    await eventually(lambda: calls._busy)
    move.cancel()
    await asyncio.wait([move])
    await asyncio.wait_for(worker.wait(), LONG)
    assert await helper.state(stopped.pid, LONG) is State.LOCKED
    assert await helper.state(slow.pid, LONG) is State.CHECKPOINTED
    await calls.restore(slow.pid, LONG)
    for each in (stopped, slow):
        await calls.unlock(each.pid, LONG)
    await calls.close()


async def test_a_driver_that_does_not_begin_in_time_is_reported_like_any_other_failure(
    helper: CardHelper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as a TimeoutError: nobody would undo what was begun, and no scheduler would start."""
    monkeypatch.setattr(card_helper, "BEGIN_SECONDS", 0.0)
    assert "did not begin" in await helper.why_not()
    with pytest.raises(CardError) as raised:
        await helper.state(1, LONG)
    assert raised.value.why is Why.HUNG


async def test_a_worker_that_is_killed_as_it_begins_is_followed_by_another(
    quick: Card, helper: CardHelper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one death at the wrong moment, and until the next start nobody takes turns and nothing can be moved."""
    fragile = tmp_path / "worker.py"
    fragile.write_text(f"""
import os, runpy
try:
    os.close(os.open({str(tmp_path / "died")!r}, os.O_CREAT | os.O_EXCL))
except FileExistsError:
    runpy.run_path({str(card_helper.WORKER)!r}, run_name="__main__")
else:
    os.kill(os.getpid(), 9)
""")
    monkeypatch.setattr(card_helper, "WORKER", fragile)
    assert await helper.why_not() == ""
    assert (tmp_path / "died").exists()
    fragile.write_text("import os; os.kill(os.getpid(), 9)")
    dying = CardHelper(quick.env())
    assert await dying.why_not() == "The helper was ended as it began."
    await dying.close()


async def test_a_worker_that_cannot_be_started_is_reported_like_any_other_failure(
    helper: CardHelper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(card_helper.sys, "executable", "/nowhere/python")
    assert "No process can be started" in await helper.why_not()


async def test_once_it_is_closed_nobody_begins_who_would_be_left(quick: Card, cuda: Program) -> None:
    helper = CardHelper(quick.env())
    begins = asyncio.create_task(helper.prepare(1))
    await asyncio.sleep(0)
    await helper.close()
    with pytest.raises(CardError, match="ending"):
        await begins
    with pytest.raises(CardError, match="ending"):
        await helper.state(cuda.pid, LONG)
    assert not helper._idle


async def test_a_worker_that_was_killed_has_ended_when_it_is_closed_though_who_waited_for_it_has_gone(
    quick: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(card_helper, "BEGIN_SECONDS", 0.0)
    helper = CardHelper(quick.env())
    begins = asyncio.create_task(helper.prepare(1))
    (worker,) = await eventually(lambda: set(helper._left), every=0)  # it ends within milliseconds
    begins.cancel()
    await helper.close()
    assert worker.returncode == -signal.SIGKILL
    with pytest.raises(asyncio.CancelledError):
        await begins


async def test_workers_that_begin_while_others_call_are_not_forgotten(
    quick: Card, cuda: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper, begun = CardHelper(quick.env()), []
    start = helper._start

    async def noted() -> asyncio.subprocess.Process:
        begun.append(await start())
        return begun[-1]

    monkeypatch.setattr(helper, "_start", noted)
    await asyncio.gather(helper.prepare(3), *(helper.state(cuda.pid, LONG) for _ in range(3)))
    await helper.close()
    assert len(begun) >= 3
    assert all(worker.returncode is not None for worker in begun)


async def test_what_the_driver_prints_is_not_taken_for_an_answer(
    quick: Card, cuda: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA_LOG_FILE=stdout: each call would have had the answer to the one before, and a move have gone on by it."""
    logs = "if code: os.write(1, b'[CUDA][E] Returning %d from %s\\n' % (code, name.encode()))"
    monkeypatch.setattr(card_helper, "WORKER", worker(tmp_path, after=logs))
    helper = CardHelper(quick.env())
    with pytest.raises(CardError) as caught:
        await helper.unlock(cuda.pid, LONG)
    assert caught.value.why is Why.WRONG_STATE
    assert (await helper.lock(cuda.pid, LONG)).state is State.LOCKED
    assert (await helper.unlock(cuda.pid, LONG)).state is State.RUNNING
    await helper.close()


@pytest.mark.parametrize("answer", ["what nobody knows", "0 0 0.1 and more", "0 77 0.1", r"\xff 0 0.1"])
async def test_a_worker_that_answers_what_nobody_understands_is_ended_and_followed_by_another(
    quick: Card, cuda: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    """Nobody knows what its next answer would be to."""
    odd = tmp_path / "worker.py"
    odd.write_text(f"import os\nos.write(1, b'ready 1\\n')\ninput()\nos.write(1, b'{answer}\\n')\ninput()")
    helper = CardHelper(quick.env())
    with monkeypatch.context() as patched:
        patched.setattr(card_helper, "WORKER", odd)
        assert await helper.why_not() == ""
    (process,) = helper._idle
    with pytest.raises(CardError) as caught:
        await helper.lock(cuda.pid, LONG)
    assert (caught.value.why, caught.value.state) == (Why.FAILED, State.UNKNOWN)
    assert process.returncode == -signal.SIGKILL
    assert await helper.state(cuda.pid, LONG) is State.RUNNING
    await helper.close()


async def test_a_call_that_fails_by_what_nobody_thought_of_costs_its_worker_and_is_reported_like_any_other(
    quick: Card, cuda: Program, helper: CardHelper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host is out of memory, say. A worker that is in no list would be there until the scheduler ends."""
    assert await helper.why_not() == ""
    (process,) = helper._idle

    def short_of_memory(pid: int) -> bool:
        raise MemoryError

    quick.order("sim_card_fault", CHECKPOINT, HANGS)
    await helper.lock(cuda.pid, LONG)
    with monkeypatch.context() as patched:
        patched.setattr(card_helper, "is_stopped", short_of_memory)
        with pytest.raises(CardError) as caught:
            await helper.checkpoint(cuda.pid, LONG)
    assert caught.value.why is Why.FAILED
    assert process.returncode == -signal.SIGKILL
    assert await helper.state(cuda.pid, LONG) is State.LOCKED


async def test_whom_it_has_stopped_goes_on_when_it_is_closed(quick: Card, cuda: Program, helper: CardHelper) -> None:
    """As where its scheduler is killed."""
    closing = CardHelper(quick.env())
    await closing.stop(cuda.pid, LONG)
    await closing.close()
    assert await helper.state(cuda.pid, LONG) is State.RUNNING


async def test_one_that_is_closed_while_whom_it_has_stopped_is_frozen_does_not_wait_for_that(
    quick: Card, cuda: Program, helper: CardHelper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(card_helper, "LEAVING", 0.1)
    closing = CardHelper(quick.env())
    await closing.stop(cuda.pid, LONG)
    (process,) = closing._idle
    os.kill(cuda.pid, signal.SIGSTOP)
    await asyncio.wait_for(closing.close(), LONG)
    assert process.returncode is not None
    os.kill(cuda.pid, signal.SIGCONT)
    with contextlib.suppress(CardError):  # what it was asked for before may be done now
        await helper.unlock(cuda.pid, LONG)
