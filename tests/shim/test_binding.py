"""Python and C see one lease page and one frame."""

import gc
import os
from pathlib import Path

import pytest

from shim.binding import FRAME_SIZE, PAGE_SIZE, PAGE_SLOTS, BadFrame, BadPage, Frame, LeasePage, Type, pack, unpack
from shim.binding.gate import ENTRIES, Unseen
from tests.support.card import ROOT

MIB = 1 << 20
FIRST, SECOND = bytes(range(16)), b"\1" * 16


def test_what_one_mapping_writes_the_other_reads():
    ours = LeasePage.create([FIRST, SECOND])
    ours[1].quota = 64 * MIB
    ours[1].extend(32 * MIB)
    theirs = LeasePage.adopt(os.dup(ours.fileno()))
    assert theirs.uuids == (FIRST, SECOND)
    assert theirs[1].reserve(20 * MIB)
    assert ours[1].headroom == 12 * MIB
    assert (ours[1].used, ours[1].claim) == (20 * MIB, 44 * MIB)
    assert ours[0].headroom == 0
    ours.close()
    theirs.close()


def test_headroom_is_taken_back_up_to_what_is_there():
    page = LeasePage.create([FIRST])
    page[0].extend(10)
    assert page[0].take_back(4) == 4
    assert page[0].take_back(100) == 6
    assert page[0].take_back(100) == 0
    page.close()


def test_a_release_reports_pressure():
    page = LeasePage.create([FIRST])
    assert page[0].release(1) is False
    page[0].pressure = True
    assert page[0].release(1) is True
    page.close()


def test_what_came_by_message_becomes_headroom_when_it_is_freed():
    page = LeasePage.create([FIRST])
    page[0].grant(7)
    assert (page[0].used, page[0].unheard) == (7, 7)
    page[0].accept(7)
    page[0].release(5)
    assert (page[0].used, page[0].headroom, page[0].leased, page[0].unheard) == (2, 5, 7, 0)
    page.close()


def test_peak_between_two_looks_is_reported_once():
    page = LeasePage.create([FIRST])
    page[0].extend(100)
    assert page[0].reserve(60)
    page[0].release(50)
    assert page[0].take_peak() == 60
    assert page[0].take_peak() == 0
    page[0].release(1)
    assert page[0].take_peak() == 10
    page.close()


def test_a_page_adds_up():
    page = LeasePage.create([FIRST])
    slot = page[0]
    slot.grant(5)
    slot.extend(7)
    slot.measure(2)
    assert (slot.leased, slot.headroom, slot.used) == (14, 7, 7)
    slot.measure(-1)
    assert (slot.take_back(4), slot.leased, slot.headroom, slot.used) == (4, 9, 3, 6)
    slot.settle()
    assert (slot.leased, slot.headroom, slot.used) == (6, 0, 6)
    page.close()


def test_page_that_another_scheduler_left_while_it_took_back_is_right_again():
    page = LeasePage.create([FIRST])
    page[0].extend(10)
    assert page[0].reserve(8)
    page[0].wipe()  # as if it had ended after lowering the limit, before looking at what was taken
    assert not page[0].reserve(1)
    page[0].settle()
    assert (page[0].leased, page[0].used, page[0].headroom) == (8, 8, 0)
    page.close()


def test_a_page_costs_one_descriptor_and_none_once_it_is_closed_whoever_still_has_a_slot_of_it():
    """An error that was caught keeps what its functions knew until the next look for garbage, and that may be long."""
    page = LeasePage.create([FIRST], "one-of-its-own")
    slot = page[0]
    assert _opened("one-of-its-own") == 1
    page.close()
    del page
    gc.collect()
    slot.extend(7)
    assert slot.headroom == 7
    assert _opened("one-of-its-own") == 0


def _opened(name: str) -> int:
    links = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return links.count(f"/memfd:{name} (deleted)")


def test_a_page_that_cannot_be_mapped_is_refused_and_closed():
    page = LeasePage.create([FIRST])
    fd = os.open(f"/proc/self/fd/{page.fileno()}", os.O_RDONLY)
    with pytest.raises(BadPage, match=r"cannot be mapped: .*Permission denied"):
        LeasePage.adopt(fd)
    with pytest.raises(OSError):  # noqa: PT011 -- it was closed
        os.fstat(fd)
    page.close()


def test_a_page_that_could_shrink_is_refused():
    fd = os.memfd_create("unsealed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, PAGE_SIZE)
    with pytest.raises(BadPage):
        LeasePage.adopt(fd)
    with pytest.raises(OSError):  # noqa: PT011 -- it was closed
        os.fstat(fd)


def test_a_file_that_is_no_page_is_refused():
    page = LeasePage.create([FIRST])
    os.pwrite(page.fileno(), b"\0\0\0\0", 0)
    with pytest.raises(BadPage):
        LeasePage.adopt(os.dup(page.fileno()))
    page.close()


def test_anything_else_than_a_memory_file_is_refused():
    reader, writer = os.pipe()
    with pytest.raises(BadPage):
        LeasePage.adopt(reader)
    os.close(writer)


def test_too_many_gpus_are_refused():
    with pytest.raises(ValueError, match="16 GPUs"):
        LeasePage.create([FIRST] * (PAGE_SLOTS + 1))


def test_a_frame_survives_the_journey():
    frame = Frame(Type.NEED, slot=3, serial=2**32 - 1, code=1, bytes=2**64 - 1)
    assert unpack(pack(frame)) == frame


@pytest.mark.parametrize("data", [b"", b"\0" * (FRAME_SIZE - 1), b"\0" * (FRAME_SIZE + 1), b"\xff" * FRAME_SIZE])
def test_bytes_that_are_no_frame_are_refused(data):
    with pytest.raises(BadFrame):
        unpack(data)


def test_the_library_is_plain_c_that_every_python_loads():
    """Compiled against Python's headers it would need them where `make` runs: a newcomer's machine has none."""
    library = (ROOT / ".build" / "_gpushare.so").read_bytes()
    assert b"lease_take_back" in library
    assert b"PyInit_" not in library


def test_a_gate_that_its_own_program_scribbles_over_is_read_all_the_same():
    page = LeasePage.create([FIRST])
    for word in (b"\xff", b"\xa5", b"\x02"):
        os.pwrite(page.fileno(), word * (PAGE_SIZE - 4096), 2176)
        assert len(page.gate.entries()) <= ENTRIES
        assert page.gate.unseen <= sum(Unseen)
        page.gate.ask()
        page.gate.let_go()
    page.close()
