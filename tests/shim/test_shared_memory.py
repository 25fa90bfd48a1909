"""The lease page notes that a process shares memory: such memory must not be moved to host memory."""

from collections.abc import AsyncIterator

import pytest

from scheduler.card.helper import CardError, CardHelper, State, Why
from shim.binding import Sharing
from tests.shim.test_virtual import create, reserve
from tests.support import layouts
from tests.support.card import MIB

LONG = 30.0
INTERPROCESS = 4 | 2
DMA_BUF = 1
MULTICAST = {"bytes": ((2).to_bytes(8, "little") + (2 * MIB).to_bytes(8, "little") + bytes(16)).hex()}
# By value a handle is 64 bytes: a call like any other in C, and a structure here.
OPEN = """
class Handle(ctypes.Structure):
    _fields_ = [("raw", ctypes.c_char * 64)]
handle = Handle.from_buffer_copy(bytes.fromhex({handle!r}))
answer = lib.{name}(ctypes.byref(ctypes.c_uint64()), handle, *{last!r})
"""


def exports(cuda) -> int:
    return cuda("cuMemExportToShareableHandle", {"out": 0}, create(cuda, 2 * MIB, handle_type=1), 1, 0)[0] & 0xFFFFFFFF


def imports(cuda) -> None:
    cuda.new("cuMemImportFromShareableHandle", exports(cuda), 1)


def exports_a_range(cuda) -> None:
    cuda("cuMemGetHandleForAddressRange", {"out": 0}, cuda.new("cuMemAlloc_v2", 2 * MIB), 2 * MIB, DMA_BUF, 0)


def exports_a_pool(cuda) -> None:
    cuda("cuMemPoolExportToShareableHandle", {"out": 0}, cuda.new("cuMemPoolCreate", layouts.pool(handle_type=1)), 1, 0)


def gets_ipc_memory(cuda) -> str:
    return cuda("cuIpcGetMemHandle", {"bytes": bytes(64).hex()}, cuda.new("cuMemAlloc_v2", MIB))[0]


def gets_an_ipc_event(cuda) -> str:
    return cuda("cuIpcGetEventHandle", {"bytes": bytes(64).hex()}, cuda.new("cuEventCreate", INTERPROCESS))[0]


def enables_peer_access(cuda) -> None:
    cuda("cuCtxEnablePeerAccess", cuda.new("cuDevicePrimaryCtxRetain", 1), 0)


def mapped(cuda) -> int:
    address = reserve(cuda, 2 * MIB)
    cuda("cuMemMap", address, 2 * MIB, 0, create(cuda, 2 * MIB), 0)
    return address


def gives_access_to_the_other_card(cuda) -> None:
    cuda("cuMemSetAccess", mapped(cuda), 2 * MIB, layouts.access(1), 1)


def gives_the_other_card_a_pool(cuda) -> None:
    cuda("cuMemPoolSetAccess", cuda.new("cuMemPoolCreate", layouts.pool()), layouts.access(1), 1)


def makes_a_multicast_object(cuda) -> None:
    cuda.new("cuMulticastCreate", MULTICAST)


def makes_host_memory(cuda) -> None:
    cuda.new("cuMemCreate", 2 * MIB, layouts.allocation(kind=layouts.HOST), 0)


def knows_the_hosts_pool(cuda) -> None:
    cuda.new("cuMemGetDefaultMemPool", layouts.location(kind=layouts.HOST), layouts.PINNED)


def makes_a_pool_of_the_host(cuda) -> None:
    cuda.new("cuMemPoolCreate", layouts.pool(kind=layouts.HOST))


def maps_host_memory(cuda) -> None:
    """For the first card: that one card can use it is no access of another's."""
    address = reserve(cuda, 2 * MIB)
    handle = cuda.new("cuMemCreate", 2 * MIB, layouts.allocation(kind=layouts.HOST), 0)
    cuda("cuMemMap", address, 2 * MIB, 0, handle, 0)
    cuda("cuMemSetAccess", address, 2 * MIB, layouts.access(0), 1)


def gives_a_card_a_pool_of_the_host(cuda) -> None:
    pool = cuda.new("cuMemPoolCreate", layouts.pool(kind=layouts.HOST))
    cuda("cuMemPoolSetAccess", pool, layouts.access(0), 1)


TIED = [
    (makes_host_memory, Sharing.HOST),
    (maps_host_memory, Sharing.HOST),
    (makes_a_pool_of_the_host, Sharing.HOST),
    (gives_a_card_a_pool_of_the_host, Sharing.HOST),
    (exports, Sharing.EXPORTED),
    (imports, Sharing.EXPORTED | Sharing.IMPORTED),
    (exports_a_range, Sharing.EXPORTED),
    (exports_a_pool, Sharing.POOL),
    (enables_peer_access, Sharing.PEER),
    (gives_access_to_the_other_card, Sharing.PEER),
    (gives_the_other_card_a_pool, Sharing.PEER),
    (makes_a_multicast_object, Sharing.MULTICAST),
]


@pytest.fixture
def card(two_gpus):
    return two_gpus


@pytest.fixture
async def helper(card) -> AsyncIterator[CardHelper]:
    card.order("sim_card_speed", 0, 0)
    helper = CardHelper(card.env())
    yield helper
    await helper.close()


@pytest.mark.parametrize(
    ("shares", "how"),
    [*TIED, (gets_ipc_memory, Sharing.IPC), (gets_an_ipc_event, Sharing.IPC), (knows_the_hosts_pool, Sharing.HOST)],
)
def test_the_page_says_how_memory_is_shared(cuda, grants, shares, how):
    assert grants.only_peer().page.shared == Sharing(0)
    shares(cuda)
    assert grants.only_peer().page.shared == how


@pytest.mark.parametrize(
    ("gets", "name", "last"),
    [
        (gets_ipc_memory, "cuIpcOpenMemHandle_v2", [1]),
        (gets_ipc_memory, "cuIpcOpenMemHandle", [1]),
        (gets_an_ipc_event, "cuIpcOpenEventHandle", []),
    ],
)
def test_so_does_the_page_of_who_opens_an_ipc_handle(cuda, program, grants, gets, name, last):
    handle = gets(cuda)
    other = program(grants)
    other.use()
    assert other.run(OPEN.format(name=name, handle=handle, last=last)) == 0
    page = next(peer.page for peer in grants.peers if peer.pid == other.pid)
    assert page.shared == Sharing.IPC


def test_what_is_not_shared_is_not_noted(cuda, grants):
    """Access for its own card, access taken away, a call that failed."""
    address = mapped(cuda)
    cuda("cuMemSetAccess", address, 2 * MIB, layouts.access(0), 1)
    cuda("cuMemSetAccess", address, 2 * MIB, layouts.access(1, flags=0), 1)
    cuda("cuMemPoolSetAccess", cuda.new("cuMemPoolCreate", layouts.pool()), layouts.access(0), 1)
    assert cuda.result("cuMemExportToShareableHandle", {"out": 0}, create(cuda, 2 * MIB), 1, 0) != 0
    assert cuda.result("cuIpcGetEventHandle", {"bytes": bytes(64).hex()}, cuda.new("cuEventCreate", 0)) != 0
    assert grants.only_peer().page.shared == Sharing(0)


def test_of_a_range_over_two_cards_access_for_one_is_access_for_another(cuda, grants):
    address = reserve(cuda, 4 * MIB)
    cuda("cuMemMap", address, 2 * MIB, 0, create(cuda, 2 * MIB), 0)
    cuda("cuMemMap", address + 2 * MIB, 2 * MIB, 0, create(cuda, 2 * MIB, device=1), 0)
    cuda("cuMemSetAccess", address, 4 * MIB, layouts.access(0), 1)
    assert grants.only_peer().page.shared == Sharing.PEER


def test_without_a_scheduler_memory_is_shared_as_ever(program, tmp_path):
    cuda = program(type("Nobody", (), {"env": lambda self: {"GPUSHARE_SOCKET": str(tmp_path / "none")}})())
    cuda("cuInit", 0)
    assert cuda.result("cuMemImportFromShareableHandle", {"out": 0}, 99, 1) != 0  # the driver's own answer


@pytest.mark.parametrize(("shares", "how"), TIED)
async def test_the_driver_takes_it_out_and_cannot_bring_it_back(card, cuda, grants, helper, shares, how):
    """As a real one does (two H100, driver 580): else refusing to move it shows nothing."""
    shares(cuda)
    await helper.lock(cuda.pid, LONG)
    assert (await helper.checkpoint(cuda.pid, LONG)).state is State.CHECKPOINTED
    with pytest.raises(CardError) as caught:
        await helper.restore(cuda.pid, LONG)
    assert (caught.value.why, caught.value.state) == (Why.CANNOT, State.CHECKPOINTED)
