"""Programs that hold memory and look whether every byte of it is right, and a card that fails on order."""

import ctypes
import sys

import pytest

import shim.sim
from tests.support.eventually import eventually
from tests.support.host import BUILD, GIB, Host, query
from web.models import Container, Gpu

LOCK, CHECKPOINT, RESTORE, UNLOCK = 1, 2, 3, 4
FAILS, HANGS, PROCESS_DIES, ASKER_DIES = 1, 2, 3, 4
STEPS = pytest.mark.parametrize("step", [LOCK, CHECKPOINT], ids=["lock", "checkpoint"])


def at_once() -> None:
    """The simulated card of this process moves memory without taking time, also what is under way."""
    _speed(0)


def slowly() -> None:
    """No memory gets to the other side until `at_once`. A scheduler gives a move up after half a minute."""
    _speed(1)


def _speed(bytes_per_second: int) -> None:
    shim.sim.load_nvml(BUILD).sim_card_speed(ctypes.c_uint64(bytes_per_second), ctypes.c_uint64(bytes_per_second))


def fault(step: int, how: int) -> None:
    shim.sim.load_nvml(BUILD).sim_card_fault(step, how)


# It holds memory, and looks whether every byte of it is right once it may go on.
HOLDER = """
import hashlib, os, sys, time
from tests.support.cuda import *
cuda, size, go_on = Cuda(), int(sys.argv[1]), sys.argv[2]
addresses = [cuda.alloc(size // 4) for _ in range(4)]
written = [hashlib.sha256(str(address).encode()).digest() * (MIB // 32) for address in addresses]
for address, data in zip(addresses, written):
    cuda.write(address + size // 4 - MIB, data)
print("holding", flush=True)
while not os.path.exists(go_on):
    time.sleep(0.01)
assert [cuda.read(address + size // 4 - MIB, MIB) for address in addresses] == written
for address in addresses:
    assert cuda.free(address) == 0
print("every byte is right", flush=True)
"""


async def holder(host: Host, size: int = 2 * GIB, quota: int = 4 * GIB, **fields: object) -> Container:
    at_once()
    words = (sys.executable, "-c", HOLDER, str(size), str(host.home / "go-on"))
    container = await host.launch(*words, gpu_memory=quota, environment={"PYTHONPATH": str(BUILD.parent)}, **fields)
    await host.says(container, "holding")
    return container


async def is_back(host: Host, container: Container) -> None:
    """Returns once its return is written down: a program that may end before that has no "swapped_in" to show."""
    live = host.up.broker.live_containers[str(container.pk)]
    await eventually(lambda: live.swap == "")


async def ends_well(host: Host, container: Container) -> Container:
    (host.home / "go-on").touch()
    ended = await host.until(container, "exited")
    assert "every byte is right" in host.log(container)
    return ended


async def free_memory(host: Host) -> int:
    await host.up.measure.once()
    host.up.report.publish()
    await host.up.store.flush()
    gpu = await query(Gpu.objects.get)
    return gpu.real
