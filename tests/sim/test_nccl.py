"""The simulated NCCL: a rank's kernel occupies its GPU until all ranks have given theirs, as a real one does.

So locking one rank while another has given its part and waits can never come to an end: what the gate is for.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sim.test_computing import Asker
from tests.support.card import Card
from tests.support.eventually import until
from tests.support.ranks import FLOAT, NOT_READY, SUM, Rank, join, split, unique


@pytest.fixture
def card(tmp_path: Path) -> Iterator[Card]:
    made = Card("sim:2x2GiB", tmp_path)
    yield made
    made.close()


@pytest.fixture
def ranks(card: Card) -> Callable[..., list[Rank]]:
    """Starts so many, on the two GPUs in turn."""
    return lambda count=2: [Rank(card, device=number % 2) for number in range(count)]


@pytest.fixture
def asker(card: Card) -> Asker:
    program = Asker(card, {})
    program("cuInit", 0)
    return program


def test_a_rank_waits_on_its_card_until_all_have_given_theirs(ranks):
    first, second, third = ranks(3)
    comms = join(first, second, third)
    for _ in range(3):
        assert first.reduce(comms[0]) == second.reduce(comms[1]) == 0
        assert not first.done()
        assert not second.done()
        assert third.reduce(comms[2]) == 0
        for rank in (first, second, third):
            rank("cuStreamSynchronize", 0)


def test_it_occupies_the_card_meanwhile(card, ranks):
    first, second = ranks()
    comms = join(first, second)
    first.reduce(comms[0])
    until(lambda: dict(card.gpus()[0]["had"][1])[first.pid] > 5e7)
    assert card.gpus()[1]["had"][1].get(second.pid, 0) == 0
    second.reduce(comms[1])
    first("cuStreamSynchronize", 0)
    before = card.gpus()[0]["had"][1][first.pid]
    assert card.gpus()[0]["had"][1][first.pid] == before


def test_one_rank_cannot_be_locked_while_its_sibling_is(ranks, asker):
    """As on two H100: the one who waits on its card cannot be locked before the other, locked, has given its part."""
    first, second = ranks()
    comms = join(first, second)
    assert first.reduce(comms[0]) == 0
    assert asker.lock(second.pid) == 0
    second.start_reduce(comms[1])  # stays in the driver
    assert asker.lock(first.pid, 100) == NOT_READY
    assert asker.unlock(second.pid) == 0
    assert second.receive()["result"] == 0
    assert asker.lock(second.pid, 5000) == asker.lock(first.pid, 5000) == 0  # all have given the same
    assert asker.unlock(second.pid) == asker.unlock(first.pid) == 0


def test_sends_wait_for_receives_of_the_same_pair_alone(ranks):
    first, second, third = ranks(3)
    comms = join(first, second, third)
    assert first.send_to(comms[0], 2) == second.send_to(comms[1], 2) == 0
    assert third.receive_from(comms[2], 1) == 0
    second("cuStreamSynchronize", 0)
    assert not first.done()
    assert third.receive_from(comms[2], 0) == 0
    first("cuStreamSynchronize", 0)
    assert first.send_to(comms[0], 0) == 0  # to oneself: nobody to wait for
    first("cuStreamSynchronize", 0)


def test_a_group_begins_at_its_end(ranks):
    first, second = ranks()
    comms = join(first, second)
    for rank, comm, peer in ((first, comms[0], 1), (second, comms[1], 0)):
        rank("ncclGroupStart")
        rank("ncclGroupStart")
        assert rank.send_to(comm, peer) == rank.receive_from(comm, peer) == rank.reduce(comm) == 0
        rank("ncclGroupEnd")
        assert rank.done()
    for rank in (first, second):
        rank("ncclGroupEnd")
    for rank in (first, second):
        rank("cuStreamSynchronize", 0)


def test_split_communicators_wait_for_their_own_ranks(ranks):
    programs = ranks(4)
    comms = dict(zip(programs, join(*programs), strict=True))
    parts = split(comms, [0, 0, 1, -1])
    assert parts[3] == 0
    assert programs[2].reduce(parts[2]) == 0  # alone in its part
    programs[2]("cuStreamSynchronize", 0)
    assert programs[0].reduce(parts[0]) == 0
    assert not programs[0].done()
    assert programs[1].reduce(parts[1]) == 0
    programs[0]("cuStreamSynchronize", 0)


def test_an_abort_ends_what_waits(ranks):
    first, second = ranks()
    comms = join(first, second)
    first.reduce(comms[0])
    assert not first.done()
    first("ncclCommAbort", comms[0])
    first("cuStreamSynchronize", 0)
    assert second.reduce(comms[1]) == second.reduce(comms[1]) == 0
    assert not second.done()  # there is nobody any more to give the second one


def test_a_captured_collective_waits_at_each_launch(ranks):
    first, second = ranks()
    comms = join(first, second)
    stream = first.new("cuStreamCreate", 1)
    first("cuStreamBeginCapture_v2", stream, 2)
    assert first.reduce(comms[0], stream=stream) == 0
    graph = first("cuStreamEndCapture", stream, {"out": 0})[0]
    assert first.done()
    exec_ = first.new("cuGraphInstantiateWithFlags", graph, 0)
    for _ in range(2):
        first("cuGraphLaunch", exec_, 0)
        assert not first.done()
        second.reduce(comms[1])
        first("cuStreamSynchronize", 0)


def test_a_training_gets_on_only_together(card):
    identity = unique()
    words = [sys.executable, "-m", "tests.support.training", "--unique", identity, "--steps", "10", "--kernel-ms", "1"]
    both = [card.popen([*words, "--rank", str(rank), "--device", str(rank)], stdout=-1) for rank in range(2)]
    assert [process.communicate()[0].split() for process in both] == 2 * [["ready", "5", "10"]]


def test_ranks_of_one_process(card, ranks):
    """All-reduces of both GPUs, in a group and in threads."""
    (program,) = ranks(1)
    assert (
        program.run(f"""
nccl = ctypes.CDLL("libnccl.so.2")
comms = (ctypes.c_void_p * 2)()
assert nccl.ncclCommInitAll(comms, 2, None) == 0
def reduce(comm):
    return nccl.ncclAllReduce(None, None, ctypes.c_size_t(1024), {FLOAT}, {SUM}, ctypes.c_void_p(comm), None)
nccl.ncclGroupStart()
assert reduce(comms[0]) == reduce(comms[1]) == 0
assert nccl.ncclGroupEnd() == 0
for thread in [threading.Thread(target=reduce, args=[comm]) for comm in comms]:
    thread.start()
    thread.join()
answer = lib.cuStreamSynchronize(None)
""")
        == 0
    )
