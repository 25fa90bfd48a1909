"""Containers that hold memory, give way and come back, on a host in this process."""

from tests.support.host import GIB
from tests.support.inprocess.host import InProcess
from tests.support.inprocess.process import Process
from tests.support.inprocess.programs import asker
from web.models import Container

STEPS = ("lock", "checkpoint", "restore", "unlock")


async def notebook(host: InProcess, size: int = 3 * GIB, quota: int = 4 * GIB, **fields: object) -> Container:
    """It holds memory, and does what it is asked (programs.py)."""
    container = await host.launch("notebook", str(size), gpu_memory=quota, **fields)
    await host.says(container, "holding")
    return container


async def runs_cell(host: InProcess, container: Container, number: int = 1, what: str = "compute") -> None:
    """Asks for a cell, and waits until it is done."""
    host.process(container).asked.put_nowait(what)
    await host.says(container, f"cell {number} is right")


async def gives_way(host: InProcess, container: Container) -> tuple[Container, Container]:
    """Somebody comes who needs what it has. Both, the first out and the other with its memory."""
    await host.eventually(lambda: host.up.activity._habits)  # how it waits while it is idle is known
    words = ("workload", "--bytes", "3GiB", "--hold", "600")
    other, _ = await host.start_launch(*words, gpu_memory=4 * GIB, name="training")
    await host.says(other, "holding")
    return await host.until(container, "swapped"), other


async def is_back(host: InProcess, container: Container) -> None:
    """Returns once its return is written down."""
    live = host.up.broker.live_containers[str(container.pk)]
    await host.eventually(lambda: live.swap == "")


async def ends_well(host: InProcess, container: Container) -> Container:
    host.process(container).asked.put_nowait("end")
    return await host.until(container, "exited")


async def on_card(host: InProcess) -> int:
    """Bytes that the card shows as used."""
    await host.settle()
    return sum(sum(held.values()) for held in host.cards.held.values())


async def asking(host: InProcess, processes: int = 1) -> Container:
    """It holds a little more than 1 GiB a process, and asks its card all the time."""
    container = await host.launch(asker, str(GIB), gpu_memory=4 * GIB)
    for _ in range(1, processes):
        host.process(container).fork(asker, str(GIB))
    await host.eventually(lambda: host.log(container).count("holding") == processes)
    return container


async def asks(host: InProcess, container: Container, *processes: Process) -> None:
    """Each of these, or of all, once more."""
    for process in processes or host.processes(container):
        before = host.log(container).count(f"{process.pid} has asked")
        await host.eventually(lambda: host.log(container).count(f"{process.pid} has asked") > before)  # noqa: B023
