"""Virtual memory management: charged until released and unmapped."""

import itertools

import pytest

from tests.support import layouts
from tests.support.card import CONTEXT, MIB

OUT_OF_MEMORY, INVALID_VALUE = 2, 1


def reserve(cuda, size):
    return cuda.new("cuMemAddressReserve", size, 0, 0, 0)


def create(cuda, size, way="dlsym", **options):
    return cuda.new("cuMemCreate", size, layouts.allocation(**options), 0, way=way)


@pytest.mark.parametrize("way", ["dlsym", "linked", "cuMemCreate/13000/0"])
def test_created_memory_is_charged_at_once(cuda, charged, way):
    handle = create(cuda, 4 * MIB, way)
    assert charged(cuda) == 4 * MIB
    cuda("cuMemRelease", handle)
    assert charged(cuda) == 0


@pytest.mark.parametrize("order", list(itertools.permutations(["release", "unmap first", "unmap second"])))
def test_it_is_charged_until_released_and_unmapped_everywhere(cuda, charged, order):
    handle = create(cuda, 4 * MIB)
    addresses = reserve(cuda, 4 * MIB), reserve(cuda, 4 * MIB)
    for address in addresses:
        cuda("cuMemMap", address, 4 * MIB, 0, handle, 0)
    for step in order:
        assert charged(cuda) == 4 * MIB
        if step == "release":
            cuda("cuMemRelease", handle)
        else:
            cuda("cuMemUnmap", addresses[step == "unmap second"], 4 * MIB)
    assert charged(cuda) == 0


def test_one_unmap_of_many_mappings(cuda, charged):
    """As PyTorch's expandable segments do: mapped piece by piece, unmapped at once."""
    address = reserve(cuda, 40 * MIB)
    for piece in range(20):
        handle = create(cuda, 2 * MIB)
        cuda("cuMemMap", address + piece * 2 * MIB, 2 * MIB, 0, handle, 0)
        cuda("cuMemRelease", handle)
    cuda("cuMemSetAccess", address, 40 * MIB, layouts.access(), 1)
    assert charged(cuda) == 40 * MIB
    cuda("cuMemUnmap", address + 10 * MIB, 10 * MIB)
    assert charged(cuda) == 30 * MIB
    cuda("cuMemUnmap", address, 10 * MIB)
    cuda("cuMemUnmap", address + 20 * MIB, 20 * MIB)
    assert charged(cuda) == 0


def test_a_retained_handle_keeps_it(cuda, charged):
    handle, address = create(cuda, 2 * MIB), reserve(cuda, 2 * MIB)
    cuda("cuMemMap", address, 2 * MIB, 0, handle, 0)
    again = cuda.new("cuMemRetainAllocationHandle", address)
    cuda("cuMemRelease", handle)
    cuda("cuMemUnmap", address, 2 * MIB)
    assert charged(cuda) == 2 * MIB
    cuda("cuMemRelease", again)
    assert charged(cuda) == 0


def test_a_handle_retained_after_the_release(cuda, charged):
    handle, address = create(cuda, 4 * MIB), reserve(cuda, 4 * MIB)
    cuda("cuMemMap", address, 4 * MIB, 0, handle, 0)
    cuda("cuMemRelease", handle)
    again = cuda.new("cuMemRetainAllocationHandle", address + 2 * MIB)
    cuda("cuMemUnmap", address, 4 * MIB)
    assert charged(cuda) == 4 * MIB
    cuda("cuMemRelease", again)
    assert charged(cuda) == 0


def test_what_fails_changes_nothing(cuda, charged):
    handle, address = create(cuda, 2 * MIB), reserve(cuda, 2 * MIB)
    assert cuda.result("cuMemUnmap", address, 2 * MIB) != 0
    assert cuda.result("cuMemMap", 12345, 2 * MIB, 0, handle, 0) != 0
    assert cuda.result("cuMemRelease", 987654321) != 0
    assert cuda.result("cuMemCreate", None, 2 * MIB, layouts.allocation(), 0) != 0
    assert cuda.result("cuMemCreate", {"out": 0}, 2 * MIB, None, 0) != 0
    assert cuda.result("cuMemCreate", {"out": 0}, 2**64 - 1, layouts.allocation(), 0) != 0
    assert charged(cuda) == 2 * MIB
    cuda("cuMemMap", address, 2 * MIB, 0, handle, 0)
    assert cuda.result("cuMemUnmap", address, 2**63) != 0
    assert charged(cuda) == 2 * MIB


def test_beyond_the_quota(grants_of, program):
    cuda = program(grants := grants_of(quota=CONTEXT + 10 * MIB))
    cuda.use()
    create(cuda, 8 * MIB)
    assert cuda.result("cuMemCreate", {"out": 0}, 4 * MIB, layouts.allocation(), 0) == OUT_OF_MEMORY
    assert grants.only_peer().used() == CONTEXT + 8 * MIB


def test_imported_memory_is_its_exporters(cuda, program, grants, charged):
    handle = create(cuda, 2 * MIB, handle_type=1)
    fd = cuda("cuMemExportToShareableHandle", {"out": 0}, handle, 1, 0)[0] & 0xFFFFFFFF
    other = program(grants)
    other.use()
    here = other.run(f"import os; answer = os.open('/proc/{cuda.pid}/fd/{fd}', os.O_RDWR)")
    imported, address = other.new("cuMemImportFromShareableHandle", here, 1), reserve(other, 2 * MIB)
    other("cuMemMap", address, 2 * MIB, 0, imported, 0)
    assert (charged(other), charged(cuda)) == (0, 2 * MIB)
    other("cuMemUnmap", address, 2 * MIB)
    other("cuMemRelease", imported)
    assert (charged(other), charged(cuda)) == (0, 2 * MIB)


def test_ones_own_memory_imported_again_is_charged_once(cuda, charged):
    handle = create(cuda, 2 * MIB, handle_type=1)
    fd = cuda("cuMemExportToShareableHandle", {"out": 0}, handle, 1, 0)[0] & 0xFFFFFFFF
    cuda.new("cuMemImportFromShareableHandle", fd, 1)
    assert charged(cuda) == 2 * MIB
