"""A program whose first thread has ended computes on in the others: it is a container's like any other."""

import asyncio
import sys

from scheduler import proc
from scheduler.card.helper import is_stopped
from scheduler.sessions import lease_pages
from scheduler.sessions.live_containers import program_of
from tests.support.eventually import eventually
from tests.support.host import MIB, Host, host
from web.models import Container, Swap

__all__ = ["host"]


SIZE = 700 * MIB
# Its first thread makes the context and ends; another one holds the memory, and frees it when there is a file.
PROGRAM = """
import ctypes, os, sys, threading, time
cuda, libc = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(None)
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
if len(sys.argv) > 3:
    os.closerange(3, 1000)  # its descriptor of the lease page is closed, too: the page is only mapped

def first_has_ended():
    return open("/proc/self/stat").read().rpartition(")")[2].split()[0] == "Z"

def others():
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(sys.argv[1]))) == 0
    while not first_has_ended():
        time.sleep(0.01)
    print("holding", flush=True)
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.01)
    print("freed", cuda.cuMemFree_v2(pointer), flush=True)
    os._exit(0)

threading.Thread(target=others).start()
libc.pthread_exit(None)
"""


async def leaderless(host: Host, *more: str) -> Container:
    """It holds memory, and its first thread has ended."""
    container = await host.launch(sys.executable, "-c", PROGRAM, str(SIZE), str(host.home / "go"), *more)
    await host.says(container, "holding")
    return container


def pid_of(host: Host, container: Container) -> int:
    (session,) = host.up.broker.live_containers[str(container.pk)].sessions.values()
    return session.pid


def used(host: Host, container: Container) -> int:
    live = host.up.broker.live_containers[str(container.pk)]
    return sum(live.used(gpu) for gpu in live.quota)


async def ends(host: Host, container: Container) -> None:
    (host.home / "go").touch()
    await host.until(container, "exited")
    assert "freed 0" in host.log(container)


async def test_all_that_proc_tells_of_it_is_what_a_thread_tells_that_lives(host: Host) -> None:
    container = await leaderless(host)
    pid, id_ = pid_of(host, container), str(container.pk)
    (session,) = host.up.broker.live_containers[id_].sessions.values()
    assert program_of(pid) == session.program  # as when its first thread still lived
    assert lease_pages.holders([pid], 1 << 20) == [(pid, id_)]
    fd = lease_pages.find(pid, id_)
    assert fd is not None
    lease_pages.LeasePage.adopt(fd).close()
    assert f"GPUSHARE_SOCKET={host.up.server.socket_dir(id_)}".encode() in proc.read(pid, "environ")
    assert proc.read(pid, "cmdline").startswith(sys.executable.encode())
    assert proc.read(pid, "mountinfo")
    assert (found := proc.stat(pid)) is not None
    assert found.state in "RSD"
    assert found.pages > 0
    assert not is_stopped(pid)
    await ends(host, container)


async def test_it_is_paused_moved_and_taken_over_like_any_other(host: Host) -> None:
    container = await leaderless(host)
    before, pid = used(host, container), pid_of(host, container)
    assert (await host.command("pause", container)).outcome == "done"
    assert (await asyncio.to_thread(proc.stat, pid)).state in "Tt"
    assert is_stopped(pid)
    assert (await host.command("resume", container)).outcome == "done"
    answer = await host.command("pause", container, free_memory=True)
    assert answer.outcome == "done", answer.message
    await host.stop()
    await host.start()
    live = host.up.broker.live_containers[str(container.pk)]
    assert (live.swap, len(live.sessions), used(host, container)) == (Swap.OUT, 1, 0)
    assert (await host.command("resume", container)).outcome == "done"
    await eventually(lambda: used(host, container) == before)
    await ends(host, container)


async def test_a_new_scheduler_finds_its_page_though_it_has_closed_all_its_descriptors(host: Host) -> None:
    container = await leaderless(host, "closed")
    before = used(host, container)
    await host.stop()
    await host.start()
    await eventually(lambda: used(host, container) == before)
    (gpu,) = host.up.gpus.cards
    await eventually(lambda: host.up.broker.state.gpus[gpu].held >= before)
    assert (await host.claim(container)).unexplained == 0
    await ends(host, container)
