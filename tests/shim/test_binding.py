"""Python and C see one lease page and one frame."""

from __future__ import annotations

import os

import pytest

from shim.binding import FRAME_SIZE, PAGE_SIZE, PAGE_SLOTS, BadFrame, BadPage, Frame, LeasePage, Type, pack, unpack

MIB = 1 << 20
FIRST, SECOND = bytes(range(16)), b"\1" * 16


def test_what_one_mapping_writes_the_other_reads():
    ours = LeasePage.create([FIRST, SECOND])
    ours[1].quota, ours[1].granted = 64 * MIB, 32 * MIB
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


def test_headroom_never_wraps_round():
    page = LeasePage.create([FIRST])
    page[0].extend(2**64 - 1)
    page[0].extend(2**63)
    assert page[0].headroom == 2**64 - 1
    assert page[0].used == 0
    page.close()


def test_a_page_that_could_shrink_is_refused():
    fd = os.memfd_create("unsealed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, PAGE_SIZE)
    with pytest.raises(BadPage):
        LeasePage.adopt(fd)
    with pytest.raises(OSError):  # noqa: PT011 -- it was closed
        os.fstat(fd)


def test_a_page_of_another_release_is_refused():
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
