"""The session with the scheduler: away, restarted, refusing, breaking its own rules; a page that is scribbled over."""

import time

import pytest

from shim.binding import Code, Frame, Type, pack
from tests.support.card import CONTEXT, MIB
from tests.support.eventually import until

OUT_OF_MEMORY, NOT_PERMITTED = 2, 800
MOST_ATTEMPTS = 38  # charge.c; about two seconds of pauses


def test_allocations_inside_the_lease_go_on_without_a_scheduler(grants_of, program):
    cuda = program(grants := grants_of(extra=512 * MIB))
    cuda.use()
    cuda.new("cuMemAlloc_v2", 2 * MIB)
    grants.go_away(leave_socket=False)
    cuda("cuMemFree_v2", cuda.new("cuMemAlloc_v2", 100 * MIB))
    assert grants.peers[0].used() == CONTEXT + 2 * MIB


@pytest.mark.parametrize("leave_socket", [True, False])
def test_beyond_it_they_wait_until_it_is_back(grants, program, leave_socket):
    cuda = program(grants)
    cuda.use()
    kept = grants.peers[0].page[0]
    grants.go_away(leave_socket=leave_socket)
    cuda.start_new("cuMemAlloc_v2", 8 * MIB)
    time.sleep(0.1)
    assert kept.used == CONTEXT
    grants.listen()
    assert cuda.receive()["result"] == 0
    assert [peer.reconnected for peer in grants.peers] == [False, True]
    assert grants.peers[1].used() == CONTEXT + 8 * MIB


def test_many_waiting_threads_all_ask_again(grants, program):
    cuda = program(grants)
    context = cuda.use()
    grants.hold()
    cuda.wait_in_threads(context, 40)
    asked = {grants.next_open()[1].serial for _ in range(40)}
    for _ in range(2):
        grants.go_away()
        grants.listen()
        questions = [grants.next_open() for _ in range(40)]
        assert {question[1].serial for question in questions} == asked
    for question in questions:
        grants.answer(question)
    assert cuda.receive() == [0] * 40


def test_a_process_that_needs_nothing_connects_again_when_it_frees_under_pressure(grants, program):
    cuda = program(grants)
    cuda.use()
    addresses = [cuda.new("cuMemAlloc_v2", 2 * MIB) for _ in range(2)]
    grants.peers[0].page[0].pressure = True
    grants.go_away()
    cuda("cuMemFree_v2", addresses[0])
    grants.listen()
    cuda("cuMemFree_v2", addresses[1])
    until(lambda: len(grants.peers) == 2 and grants.peers[1].frames)
    assert grants.peers[1].frames[0].type == Type.RELEASED


def test_a_refusal_after_a_restart_answers_who_waits(grants, program):
    cuda = program(grants)
    cuda.use()
    grants.hold()
    cuda.start_new("cuMemAlloc_v2", 8 * MIB)
    grants.next_open()
    grants.refuse = Code.NOT_RUNNING
    grants.go_away()
    grants.listen()
    assert cuda.receive()["result"] == NOT_PERMITTED


def test_a_first_connection_that_is_refused_waits_for_a_while(grants, program):
    grants.go_away()
    cuda = program(grants)
    cuda("cuInit", 0)
    cuda.start_new("cuDevicePrimaryCtxRetain", 0)
    time.sleep(0.1)
    grants.listen()
    assert cuda.receive()["result"] == 0
    assert cuda.end() == ""


def test_a_first_connection_that_stays_refused(grants, program, card):
    grants.go_away()
    cuda = program(grants, GPUSHARE_PATIENCE="0")
    cuda("cuInit", 0)
    assert cuda.result("cuDevicePrimaryCtxRetain", {"out": 0}, 0) == OUT_OF_MEMORY
    assert card.used() == 0
    assert len(cuda.end().splitlines()) == 1


@pytest.mark.parametrize(
    "frame",
    [
        Frame(Type.GRANTED, 0, 999, bytes=1),
        Frame(Type.WELCOME),
        Frame(200, 7, 7, 7, 7),
        Frame(Type.REJECTED, 0, 12345, code=3),
    ],
)
def test_frames_that_answer_nothing_are_passed_over(grants, program, frame):
    cuda = program(grants)
    cuda.use()
    grants.hold()
    cuda.start_new("cuMemAlloc_v2", 4 * MIB)
    question = grants.next_open()
    question[0].connection.sendall(pack(frame))
    grants.answer(question)
    assert cuda.receive()["result"] == 0


def test_a_frame_of_another_size_ends_the_connection_and_not_the_program(grants, program):
    cuda = program(grants)
    cuda.use()
    grants.hold()
    cuda.start_new("cuMemAlloc_v2", 4 * MIB)
    grants.next_open()[0].connection.sendall(b"\xff" * 24)
    question = grants.next_open()
    assert question[0].reconnected
    grants.answer(question)
    assert cuda.receive()["result"] == 0


def test_a_long_path(grants, program, tmp_path):
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    grants.path.rename(folder / "gpushare.sock")
    cuda = program(grants, GPUSHARE_SOCKET=str(folder / "gpushare.sock"))
    cuda.use()
    assert grants.only_peer().used() == CONTEXT


SCRIBBLE = """
import mmap
path = next(f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")
            if "gpushare-lease" in os.path.realpath(f"/proc/self/fd/{fd}"))
with open(path, "r+b") as file, mmap.mmap(file.fileno(), 4096) as page:
    page[PLACE] = FILL * len(page[PLACE])
answer = True
"""


@pytest.mark.parametrize("fill", ["b'\\xff'", "b'\\0'", "b'\\x7f'"])
@pytest.mark.parametrize("place", ["0:4096", "0:128", "128:136", "128:256"])
def test_a_page_that_its_own_program_scribbles_over(grants, program, fill, place):
    """The program may fool itself; it neither crashes, nor does any counter leave its range."""
    cuda = program(grants)
    cuda.use()
    cuda.run(SCRIBBLE.replace("PLACE", place).replace("FILL", fill))
    held = [cuda.result("cuMemAlloc_v2", {"out": 0}, 2 * MIB) for _ in range(3)]
    assert set(held) <= {0, OUT_OF_MEMORY, NOT_PERMITTED}
    cuda.result("cuMemGetInfo_v2", {"out": 0}, {"out": 0})
    cuda.result("cuMemAllocAsync", {"out": 0}, MIB, 0)
    cuda.result("cuDevicePrimaryCtxReset_v2", 0)
    slot = grants.only_peer().page[0]
    for value in (slot.headroom, slot.used, slot.claim):
        assert 0 <= value < 2**64
    cuda.end()


def test_the_card_is_out_of_memory_inside_the_lease(grants_of, program, card):
    """Tried again for a bounded time, reported to the scheduler, and returned as it is."""
    hog = card.hold("4900m")
    cuda = program(grants := grants_of(quota=3000 * MIB, extra=3000 * MIB))
    cuda.use()
    assert cuda.result("cuMemAlloc_v2", {"out": 0}, 1000 * MIB) == OUT_OF_MEMORY
    assert cuda.run("answer = lib.sim_calls(b'cuMemAlloc_v2')") == 1 + MOST_ATTEMPTS
    peer = grants.only_peer()
    until(lambda: peer.frames[-1].type == Type.PHYSICAL)  # nobody waits for an answer to it
    assert peer.frames[-1].bytes == 1000 * MIB
    assert peer.used() == CONTEXT
    hog.kill()


def test_memory_that_comes_back_in_time_is_waited_for(grants_of, program, card):
    hog = card.hold("4900m")
    cuda = program(grants := grants_of(quota=3000 * MIB, extra=3000 * MIB))
    cuda.use()
    hog.kill()
    hog.wait()  # the card takes its memory back a moment after somebody has looked: the first attempt does
    cuda.new("cuMemAlloc_v2", 1000 * MIB)
    assert cuda.run("answer = lib.sim_calls(b'cuMemAlloc_v2')") > 1
    assert grants.only_peer().used() == CONTEXT + 1000 * MIB
