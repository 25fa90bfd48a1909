"""A lease belongs to a process for as long as it runs one program, and to nobody else."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from scheduler import proc
from scheduler.proc import Peer
from scheduler.sessions import lease_pages
from shim.binding import WIRE_VERSION, Frame, Type
from tests.support.eventually import PATIENCE, eventually
from tests.support.host import GIB, MIB, Host
from tests.support.host import host as real_host
from tests.support.inprocess.host import InProcess
from tests.support.inprocess.process import Process
from tests.support.inprocess.programs import sleep
from tests.support.raw import Elsewhere, Raw, beside

__all__ = ["real_host"]


async def _socket_dir(host: InProcess, **fields: object):
    container = await host.launch("sleep", "600", **fields)
    return container, host.up.server.socket_dir(str(container.pk))


async def test_lease_of_a_process_whose_connection_broke_stays_its_own(host: InProcess) -> None:
    container, directory = await _socket_dir(host, gpu_memory=2 * GIB)
    raw = await asyncio.to_thread(Raw, directory)
    page = await asyncio.to_thread(raw.hello)
    raw.need(GIB)
    await asyncio.to_thread(raw.read)
    raw.close()
    live = host.up.broker.live_containers[str(container.pk)]
    gpu = next(iter(live.quota))
    await host.eventually(lambda: not host.up.server.connections(live.id))
    assert live.used(gpu) == GIB
    again = await asyncio.to_thread(Raw, directory)
    assert lease_pages.inode(await asyncio.to_thread(again.hello)) == lease_pages.inode(page)  # it keeps its page
    assert len(live.sessions) == 1
    assert live.used(gpu) == GIB
    again.close()


async def test_call_that_waits_over_a_broken_connection_keeps_its_place_and_is_answered(host: InProcess) -> None:
    holder = await host.launch("workload", "--bytes", "3GiB", "--hold", "600", gpu_memory=4 * GIB)
    await host.says(holder, "holding")
    container, directory = await _socket_dir(host, gpu_memory=4 * GIB)
    raw = await asyncio.to_thread(Raw, directory)
    await asyncio.to_thread(raw.hello)
    raw.need(3 * GIB, serial=7)
    waiting = await host.until(container, "suspended")
    raw.close()
    again = await asyncio.to_thread(Raw, directory)
    await asyncio.to_thread(again.hello)
    again.need(3 * GIB, serial=7)
    assert (await host.until(container, "suspended")).suspended_since == waiting.suspended_since
    await host.command("kill", holder)
    answer = await asyncio.to_thread(again.read)
    assert (answer.serial, answer.bytes) == (7, 3 * GIB)
    again.close()


async def test_lease_returns_when_the_process_dies_though_a_fork_holds_its_connection(host: InProcess) -> None:
    container, directory = await _socket_dir(host, gpu_memory=2 * GIB)
    script = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from tests.support.raw import Raw\n"
        "raw = Raw(Path(sys.argv[1])); raw.hello(); raw.need(1 << 30); raw.read()\n"
        "child = os.fork()\n"
        "if child == 0: os.close(1); time.sleep(600)\n"
        "print(child, flush=True); time.sleep(600)\n"
    )
    parent = beside(script, directory)
    assert parent.stdout is not None
    child = int(await asyncio.to_thread(parent.stdout.readline))
    live = host.up.broker.live_containers[str(container.pk)]
    gpu = next(iter(live.quota))
    assert live.used(gpu) == GIB
    parent.kill()
    parent.communicate()
    await host.eventually(lambda: not live.sessions)
    assert live.granted(gpu) == 0
    os.kill(child, signal.SIGKILL)


async def test_exec_gives_the_new_program_a_lease_of_its_own(real_host: Host) -> None:
    program = (
        "import ctypes, os\n"
        "cuda = ctypes.CDLL('libcuda.so.1'); context = ctypes.c_void_p(); pointer = ctypes.c_uint64()\n"
        "assert cuda.cuInit(0) == 0\n"
        "assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0\n"
        "assert cuda.cuCtxSetCurrent(context) == 0\n"
        "assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(700 << 20)) == 0\n"
        "print('holds', flush=True)\n"
        f"os.execv('{real_host.workload}', ['workload', '--bytes', '700MiB', '--check', '1MiB'])\n"
    )
    container = await real_host.launch(sys.executable, "-c", program, gpu_memory=GIB)
    ended = await real_host.until(container, "exited")
    assert "holds" in real_host.log(container)
    assert ended.exit_code == 0, real_host.log(container)
    claim = await real_host.returned(container)
    assert 700 * MIB <= claim.peak <= GIB


async def test_memory_of_a_program_that_execs_another_without_cuda_comes_back(host: InProcess) -> None:
    async def execs(process: Process) -> None:
        await process.alloc(3 * GIB)
        process.hang_up()
        process.machine.kernel.exec(process.pid)
        process.machine.cards.end(process.pid)
        await asyncio.sleep(6000)

    container = await host.launch(execs, gpu_memory=4 * GIB)
    waiter = await host.launch("workload", "--bytes", "3GiB", "--hold", "600", gpu_memory=4 * GIB)
    await host.says(waiter, "holding")
    assert (await host.get(container)).state == "running"


async def test_grant_to_a_lost_connection_ends_the_wait_that_was_recorded(host: InProcess) -> None:
    holder = await host.launch("workload", "--bytes", "3GiB", "--hold", "600", gpu_memory=4 * GIB)
    await host.says(holder, "holding")
    container, directory = await _socket_dir(host, gpu_memory=4 * GIB)
    raw = await asyncio.to_thread(Raw, directory)
    await asyncio.to_thread(raw.hello)
    raw.need(3 * GIB)
    await host.until(container, "suspended")
    raw.close()
    await host.command("kill", holder)
    await host.until(container, "running")
    await host.up.store.flush()
    kinds = [event.kind for event in await host.events(container, "suspended", "resumed")]
    assert kinds == ["suspended", "resumed"]
    live = host.up.broker.live_containers[str(container.pk)]
    assert [live.granted(gpu) for gpu in live.quota] == [0]


async def test_grant_that_is_lost_with_its_connection_is_sent_again_and_counted_once(host: InProcess) -> None:
    container, directory = await _socket_dir(host, gpu_memory=2 * GIB)
    raw = await asyncio.to_thread(Raw, directory)
    await asyncio.to_thread(raw.hello)
    raw.need(GIB, serial=5)
    live = host.up.broker.live_containers[str(container.pk)]
    gpu = next(iter(live.quota))
    await host.eventually(lambda: live.used(gpu) == GIB)
    raw.close()  # what was granted is not read
    await host.eventually(lambda: not host.up.server.connections(live.id))
    for restart in (False, True):
        if restart:
            await host.stop()
            await host.start()
        again = await asyncio.to_thread(Raw, directory)
        await asyncio.to_thread(again.hello)
        again.need(GIB, serial=5)
        answer = await asyncio.to_thread(again.read)
        assert answer is not None
        assert (answer.serial, answer.bytes) == (5, GIB)
        live = host.up.broker.live_containers[str(container.pk)]
        assert live.used(gpu) == live.granted(gpu) - sum(each.headroom for each in live.leases(gpu).values()) == GIB
        again.close()
        await host.eventually(lambda: not host.up.server.connections(str(container.pk)))


async def test_300_processes_at_once_all_get_a_lease(real_host: Host) -> None:
    """On real time: who connects while too many have not said HELLO is let in a moment later."""
    container = await real_host.launch("sleep", "600", gpu_memory=4 * GIB)
    directory = real_host.up.server.socket_dir(str(container.pk))
    script = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from tests.support.raw import Raw\n"
        "for _ in range(300):\n"
        "    if os.fork() == 0:\n"
        "        begun = time.perf_counter()\n"
        "        raw = Raw(Path(sys.argv[1])); raw.hello(); raw.need(1 << 20); answer = raw.read()\n"
        "        assert answer.bytes == 1 << 20\n"
        "        os.write(1, f'{time.perf_counter() - begun}\\n'.encode()); time.sleep(1); os._exit(0)\n"
        "for _ in range(300): os.wait()\n"
    )
    output, _ = await asyncio.to_thread(beside(script, directory).communicate)
    times = sorted(float(line) for line in output.split())
    # How long it takes: benchmarks/shim/startup.py.
    print(f"HELLO to lease: median {times[150] * 1e3:.0f} ms, p99 {times[297] * 1e3:.0f} ms")
    assert len(times) == 300
    await eventually(lambda: not real_host.up.broker.sessions)


async def test_memory_is_free_again_after_kills(host: InProcess) -> None:
    container = await host.launch("sleep", "60000", gpu_memory=4 * GIB)
    processes = [host.process(container).fork(sleep, "60000") for _ in range(20)]
    for number, process in enumerate(processes):
        await process.connect()
        await process.need((number + 1) * MIB)
    live = host.up.broker.live_containers[str(container.pk)]
    (gpu,) = live.quota
    for dying, left in ((processes[::2], sum(range(2, 21, 2)) * MIB), (processes[1::2], 0)):
        for process in dying:
            host.engine.kill_process(process.pid)
        await host.eventually(lambda: live.used(gpu) == left)  # noqa: B023 - awaited here
    assert not host.up.broker.sessions
    assert host.up.broker.state.containers[live.id].leased.get(gpu, 0) == 0


# Its child keeps the connection that it made, and says HELLO once it is asked to.
THIEF = """
import os, sys
from pathlib import Path
from shim.binding import WIRE_VERSION, Frame, Type
from tests.support.raw import Raw
connector = os.fork()
if not connector:
    raw = Raw(Path(sys.argv[1]))
    if os.fork():
        os._exit(0)
    sys.stdin.readline()
    raw.send(Frame(Type.HELLO, code=WIRE_VERSION))
    print(raw.read(), flush=True)
    os._exit(0)
os.waitpid(connector, 0)
print(connector, flush=True)
"""


def started_as(pid: int, directory: Path) -> Elsewhere:
    """An attacker starts processes until the pid comes round; here the test sets which is next."""
    last = Path("/proc/sys/kernel/ns_last_pid")
    deadline = time.monotonic() + PATIENCE  # others start processes, too
    while time.monotonic() < deadline:
        try:
            last.write_text(str(pid - 1))
        except OSError as error:
            pytest.skip(f"the next pid cannot be chosen: {error}")
        process = Elsewhere(directory)
        if process.pid == pid:
            return process
        process.close()
    raise AssertionError("somebody else has the pid")


async def test_a_connection_whose_process_has_died_does_not_speak_for_who_has_its_pid_now(host: InProcess) -> None:
    """It ended the session of another container's process."""
    (_, mine), (theirs, directory) = await _socket_dir(host), await _socket_dir(host)
    thief = beside(THIEF, mine)
    assert thief.stdout is not None
    pid = int(await asyncio.to_thread(thief.stdout.readline))
    victim = await asyncio.to_thread(started_as, pid, directory)
    (session,) = host.up.broker.live_containers[str(theirs.pk)].sessions.values()
    assert (await asyncio.to_thread(thief.communicate, "now\n"))[0] == "None\n"
    assert (session.pid, session.ended) == (pid, False)
    assert "bytes=" in await asyncio.to_thread(victim.need, MIB)
    victim.close()


async def test_a_process_that_another_container_has_is_not_taken_from_it(host: InProcess) -> None:
    (mine, here), (theirs, there) = await _socket_dir(host), await _socket_dir(host)
    first, second = await asyncio.to_thread(Raw, there), await asyncio.to_thread(Raw, here)
    await asyncio.to_thread(first.hello)
    second.send(Frame(Type.HELLO, code=WIRE_VERSION))
    assert await asyncio.to_thread(second.is_closed)
    (session,) = host.up.broker.live_containers[str(theirs.pk)].sessions.values()
    assert not session.ended
    assert not host.up.broker.live_containers[str(mine.pk)].sessions
    first.close()
    second.close()


async def test_where_the_kernel_does_not_say_who_connected_a_process_of_another_container_is_not_believed(
    host: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Linux 6.5 the pidfd is opened as the connection is accepted, and is of who has the pid by then."""
    mine, directory = await _socket_dir(host)
    victim = await host.launch("sleep", "600")
    pids = iter([host.process(victim).pid, os.getpid()])
    monkeypatch.setattr(proc, "peer", lambda _: Peer(pid := next(pids), 0, proc.pidfd(pid), sure=False))
    believed = host.up.broker.live_containers[str(mine.pk)].sessions
    first = await asyncio.to_thread(Raw, directory)
    first.send(Frame(Type.HELLO, code=WIRE_VERSION))
    assert await asyncio.to_thread(first.is_closed)
    first.close()
    assert not believed
    second = await asyncio.to_thread(Raw, directory)
    await asyncio.to_thread(second.hello)
    assert [session.pid for session in believed.values()] == [os.getpid()]
    second.close()
