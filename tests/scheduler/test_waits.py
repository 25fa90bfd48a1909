"""Each wait has one end, in the rows and in the events, whatever ends it: a death, a restart, or its owner's limit."""

from datetime import timedelta

from scheduler import clock
from shim.binding import Code
from tests.support.host import GIB, MIB, query
from tests.support.inprocess.host import InProcess
from tests.support.inprocess.process import OutOfMemory, Process
from tests.support.inprocess.programs import workload
from web.history.reports import report
from web.models import Container

HOLDS = ("workload", "--bytes", "3GiB", "--hold", "600")


async def in_a_child(process: Process, *words: str) -> None:
    """The first process holds nothing, and goes on when its child has ended."""
    process.fork(workload, *words)
    await process.terminated.wait()


async def _waiting(host: InProcess) -> Container:
    """Suspended, behind one that holds 3 of 5 GiB."""
    holder = await host.launch(*HOLDS, gpu_memory=4 * GIB)
    await host.says(holder, "holding")
    waiter = await host.launch(in_a_child, *HOLDS[1:], gpu_memory=4 * GIB)
    return await host.until(waiter, "suspended")


async def test_wait_ends_in_the_records_with_the_process_that_waited(inprocess: InProcess) -> None:
    waiter = await _waiting(inprocess)
    inprocess.engine.kill_process(inprocess.processes(waiter)[1].pid)
    waiter = await inprocess.until(waiter, "running")
    await inprocess.up.store.flush()
    later = clock.now() + timedelta(hours=1)  # a wait without an end would go on until then
    found = await query(report, later - timedelta(hours=2), later, "container")
    [row] = [row for row in found.rows if row.group.startswith(waiter.name)]
    assert abs(row.suspended_microseconds / 1e6 - waiter.suspended_seconds) < 0.001


async def test_wait_ends_with_a_container_that_ended_while_there_was_no_scheduler(inprocess: InProcess) -> None:
    waiter = await _waiting(inprocess)
    await inprocess.stop()
    await inprocess.engine.kill(str(waiter.pk))
    await inprocess.start()
    waiter = await inprocess.until(waiter, "failed")
    assert waiter.suspended_since is None
    assert waiter.suspended_seconds > 0


async def test_wait_from_before_a_restart_runs_out_once(inprocess: InProcess) -> None:
    """It runs out with the first scheduler's limit though the card is empty, and the next call has what it asks for."""
    answers: list[Code] = []

    async def asks_twice(process: Process) -> None:
        await process.terminated.wait()
        for _ in range(2):
            try:
                await process.need(MIB)
            except OutOfMemory as error:
                answers.append(error.code or Code.OK)
            else:
                answers.append(Code.OK)

    container = await inprocess.launch(asks_twice, gpu_memory=4 * GIB, max_wait_seconds=5)
    live = inprocess.up.broker.live_containers[str(container.pk)]
    live.waited_since = live.suspended_since = inprocess.up.broker.now() - 6  # as after a restart
    live.wait_recorded = True
    inprocess.process(container).terminated.set()
    await inprocess.eventually(lambda: len(answers) == 2)
    assert answers == [Code.SHORTAGE, Code.OK]


async def test_clock_that_steps_does_not_end_a_wait_that_goes_on_under_another_scheduler(inprocess: InProcess) -> None:
    holder = await inprocess.launch(*HOLDS, gpu_memory=4 * GIB)
    await inprocess.says(holder, "holding")
    waiter = await inprocess.launch(*HOLDS, gpu_memory=4 * GIB, max_wait_seconds=3600)
    waiter = await inprocess.until(waiter, "suspended")
    before = len(await inprocess.events(waiter, "suspended"))
    await inprocess.stop()
    # As the wall's clock tells it once it has stepped forward by two hours.
    stepped = waiter.suspended_since - timedelta(hours=2)
    await query(Container.objects.filter(pk=waiter.pk).update, suspended_since=stepped)
    await inprocess.start()

    async def goes_on() -> bool:
        return len(await inprocess.events(waiter, "suspended")) > before

    await inprocess.eventually(goes_on)
    assert await inprocess.events(waiter, "rejected") == []
    await inprocess.command("kill", holder)
    await inprocess.says(waiter, "holding")
