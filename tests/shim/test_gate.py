"""The gate: what ranks begin is counted, and while a scheduler asks they begin nothing beyond its limits."""

import sys
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from shim.binding.gate import SILENCE, Entry, Gate, Kind, Unseen
from tests.sim.test_computing import Asker
from tests.support import layouts
from tests.support.card import BUILD, Card
from tests.support.eventually import until
from tests.support.gates import let_go, stop
from tests.support.grants import Grants
from tests.support.ranks import FLOAT, IN_PROGRESS, SUM, Rank, join, split, unique

INVALID_USAGE = 5
NOT_BLOCKING = {"bytes": ((24).to_bytes(8, "little") + bytes(12) + bytes(4)).hex()}
GROUPED = "ncclGroupStart", "ncclGroupEnd"


@pytest.fixture
def card(tmp_path: Path) -> Iterator[Card]:
    made = Card("sim:2x2GiB", tmp_path)
    yield made
    made.close()


@pytest.fixture
def rank(card: Card, grants: Grants) -> Callable[..., Rank]:
    return lambda device=0, **env: Rank(card, {**grants.env(), **env}, device)


@pytest.fixture
def gate_of(grants: Grants) -> Callable[[int], Gate]:
    """By pid."""
    return lambda pid: next(peer.page.gate for peer in grants.peers if peer.pid == pid)


@pytest.fixture
def pair(rank: Callable[..., Rank], gate_of: Callable[[int], Gate]) -> tuple[list[Rank], list[int], list[Gate]]:
    """Two ranks, the handles of their communicator, and their gates."""
    ranks = [rank(0), rank(1)]
    return ranks, join(*ranks), [gate_of(each.pid) for each in ranks]


def only(gate: Gate, kind: Kind = Kind.COLLECTIVE) -> Entry:
    (found,) = [entry for entry in gate.entries() if entry.kind is kind and not entry.left]
    return found


def counts(gate: Gate, kind: Kind = Kind.COLLECTIVE) -> tuple[int, int]:
    return only(gate, kind).begun, only(gate, kind).given


BUFFERS = (None, None, 1024, FLOAT)
FIVE = {"AllReduce": SUM, "ReduceScatter": SUM, "Broadcast": 0, "Gather": 0, "Scatter": 0}
OPERATIONS = {
    "ncclAllGather": BUFFERS,
    "ncclAlltoAll": BUFFERS,
    "ncclReduce": (*BUFFERS, SUM, 0),
    **{f"nccl{name}": (*BUFFERS, more) for name, more in FIVE.items()},
    "ncclBcast": (None, 1024, FLOAT, 0),
}
CONFIGURED = {f"{name}Config": arguments for name, arguments in OPERATIONS.items() if name != "ncclBcast"}


@pytest.mark.parametrize("way", ["dlsym", "linked"])
def test_every_operation_counts_once(pair, way):
    ranks, comms, gates = pair
    for number, (name, arguments) in enumerate({**OPERATIONS, **CONFIGURED}.items(), 1):
        for each, comm in zip(ranks, comms, strict=True):
            more = (None,) if name in CONFIGURED else ()
            assert each.result(name, *arguments, comm, 0, *more, way=way) == 0, name
        assert [counts(gate) for gate in gates] == [(number, number)] * 2, name
    first, second = map(only, gates)
    assert first.channel == second.channel == (first.communicator, -1, -1)
    assert [(entry.ranks, entry.rank) for entry in (first, second)] == [(2, 0), (2, 1)]
    assert not any(gate.unseen for gate in gates)


def test_sends_and_receives_count_by_pair(rank, gate_of):
    ranks = [rank(number % 2) for number in range(3)]
    comms = join(*ranks)
    for before, after in pairwise(range(3)):  # a pipeline: the one in the middle does twice as much
        assert ranks[before].send_to(comms[before], after) == ranks[after].receive_from(comms[after], before) == 0
    channels = [{entry.channel[1:]: entry.given for entry in gate_of(each.pid).entries()} for each in ranks]
    assert channels == [{(-1, -1): 0, (0, 1): 1}, {(-1, -1): 0, (0, 1): 1, (1, 2): 1}, {(-1, -1): 0, (1, 2): 1}]
    assert ranks[0].send_to(comms[0], 0) == 0  # to itself: nobody waits
    assert len(gate_of(ranks[0].pid).entries()) == 2


def test_what_fails_was_not_begun(pair):
    (first, _), comms, (gate, _) = pair
    assert first.result("ncclAllReduce", None, None, 1024, 99, SUM, comms[0], 0) != 0
    assert counts(gate) == (0, 0)


def test_a_group_counts_at_its_end_as_a_whole(pair):
    (first, _), comms, (gate, _) = pair
    first("ncclGroupStart")
    first("ncclGroupStart")
    first.reduce(comms[0])
    first.reduce(comms[0])
    first.send_to(comms[0], 1)
    first.reduce(comms[0])
    first("ncclGroupEnd")
    assert counts(gate) == (0, 0)
    first("ncclGroupEnd")
    assert counts(gate) == (3, 3)
    assert counts(gate, Kind.SEND) == (1, 1)
    first("ncclGroupStart")
    first.reduce(comms[0])
    first("ncclGroupSimulateEnd", None)  # nothing is launched
    assert counts(gate) == (3, 3)
    first("ncclGroupStart")
    for _ in range(40):  # more than are kept at hand
        first.reduce(comms[0])
        first.send_to(comms[0], 1)
    first("ncclGroupEnd")
    assert (counts(gate), counts(gate, Kind.SEND)) == ((43, 43), (41, 41))


# ---- graphs ----


def captured(program: Rank, comm: int, times: int = 1) -> int:
    stream = program.new("cuStreamCreate", 1)
    program("cuStreamBeginCapture_v2", stream, 2)
    for _ in range(times):
        assert program.reduce(comm, stream=stream) == 0
    return program("cuStreamEndCapture", stream, {"out": 0})[0]


def test_a_captured_operation_counts_at_each_launch(pair):
    (first, _), comms, (gate, _) = pair
    exec_ = first.new("cuGraphInstantiateWithFlags", captured(first, comms[0], 2), 0)
    assert counts(gate) == (0, 0)
    for number, name in enumerate(["cuGraphLaunch", "cuGraphLaunch_ptsz"], 1):
        first(name, exec_, 0)
        assert counts(gate) == (2 * number, 2 * number)
    first("cuGraphExecDestroy", exec_)


def test_graphs_in_graphs_and_what_becomes_of_them(pair):
    (first, _), comms, (gate, _) = pair
    inner = captured(first, comms[0])
    outer = first.new("cuGraphCreate", 0)
    first.new("cuGraphAddChildGraphNode", outer, None, 0, inner)
    first.new(
        "cuGraphAddNode_v2", outer, None, None, 0, layouts.any_node(4, {"bytes": inner.to_bytes(8, "little").hex()})
    )
    clone = first.new("cuGraphClone", outer)
    first("cuGraphDestroy", outer)
    exec_ = first.new("cuGraphInstantiateWithFlags", clone, 0)
    first("cuGraphLaunch", exec_, 0)
    assert counts(gate) == (2, 2)
    first("cuGraphExecUpdate_v2", exec_, inner, None)
    first("cuGraphLaunch", exec_, 0)
    assert counts(gate) == (3, 3)
    again = first.new("cuStreamCreate", 1)  # a launch that is captured itself
    first("cuStreamBeginCapture_v2", again, 2)
    first("cuGraphLaunch", exec_, again)
    assert counts(gate) == (3, 3)
    graph = first("cuStreamEndCapture", again, {"out": 0})[0]
    first("cuGraphLaunch", first.new("cuGraphInstantiateWithFlags", graph, 0), 0)
    assert counts(gate) == (4, 4)


def test_the_graph_of_another_has_its_handle_and_not_its_operations(pair):
    (first, _), comms, (gate, _) = pair
    for times in (1, 0):
        graph = captured(first, comms[0], times)
        exec_ = first.new("cuGraphInstantiateWithFlags", graph, 0)
        first("cuGraphDestroy", graph)
        first("cuGraphLaunch", exec_, 0)
        first("cuGraphExecDestroy", exec_)
    assert counts(gate) == (1, 1)


# ---- communicators ----


def test_a_communicator_is_the_same_for_all_its_ranks_however_it_is_made(rank, gate_of):
    ranks = [rank(0), rank(1)]
    gates = [gate_of(each.pid) for each in ranks]
    parent = dict(zip(ranks, join(*ranks), strict=True))
    split(parent, [7, 7])
    split(parent, [1, 2])
    identities = {"id": unique()}
    for number, each in enumerate(ranks):
        ids = {"bytes": identities["id"] * 2}
        each.start_new("ncclCommInitRankScalable", 2, number, 2, ids, None)
    for each in ranks:
        each.receive()
    found = [[(entry.communicator, entry.ranks, entry.rank) for entry in gate.entries()] for gate in gates]
    (first, both, alone, scalable), (first_too, both_too, alone_too, scalable_too) = found
    assert (first, both, scalable) == (
        (first_too[0], 2, 0), (both_too[0], 2, 0), (scalable_too[0], 2, 0),
    )  # fmt: skip
    assert [each[1:] for each in (first_too, both_too, scalable_too)] == [(2, 1)] * 3
    assert alone[0] != alone_too[0]
    assert alone[1:] == alone_too[1:] == (1, 0)
    assert len({each[0] for each in found[0] + found[1]}) == 5


def test_a_part_of_one_is_never_waited_for(rank, gate_of):
    alone = rank(0)
    (comm,) = join(alone)
    assert alone.reduce(comm) == 0
    assert counts(gate_of(alone.pid)) == (0, 0)


def test_ranks_of_one_process(rank, gate_of):
    both = rank(0)
    assert (
        both.run(f"""
nccl = ctypes.CDLL("libnccl.so.2")
comms = (ctypes.c_void_p * 2)()
assert nccl.ncclCommInitAll(comms, 2, None) == 0
nccl.ncclGroupStart()
for comm in comms:
    nccl.ncclAllReduce(None, None, ctypes.c_size_t(1024), {FLOAT}, {SUM}, ctypes.c_void_p(comm), None)
answer = nccl.ncclGroupEnd()
""")
        == 0
    )
    first, second = gate_of(both.pid).entries()
    assert first.channel == second.channel
    assert [(entry.ranks, entry.rank, entry.given) for entry in (first, second)] == [(2, 0, 1), (2, 1, 1)]


def test_64_ranks(rank, gate_of):
    """In one process, made in a group."""
    all_ = rank(0)
    assert (
        all_.run(f"""
nccl = ctypes.CDLL("libnccl.so.2")
class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 128)]
identity = Id()
assert nccl.ncclGetUniqueId(ctypes.byref(identity)) == 0
comms = [ctypes.c_void_p() for _ in range(64)]
nccl.ncclGroupStart()
for number, comm in enumerate(comms):
    assert nccl.ncclCommInitRank(ctypes.byref(comm), 64, identity, number) == 0
assert nccl.ncclGroupEnd() == 0
nccl.ncclGroupStart()
for comm in comms:
    nccl.ncclAllReduce(None, None, ctypes.c_size_t(1024), {FLOAT}, {SUM}, comm, None)
assert nccl.ncclGroupEnd() == 0
answer = lib.cuStreamSynchronize(None)
""")
        == 0
    )
    gate = gate_of(all_.pid)
    assert {entry.rank: entry.given for entry in gate.entries()} == dict.fromkeys(range(64), 1)
    assert len({entry.channel for entry in gate.entries()}) == 1
    assert stop([gate])
    let_go([gate])


def test_one_that_does_not_block_is_known_at_its_first_operation(rank, gate_of):
    ranks = [rank(0), rank(1)]
    identity = {"id": unique()}
    comms = []
    for number, each in enumerate(ranks):
        each.start_new("ncclCommInitRankConfig", 2, identity, number, NOT_BLOCKING)
        reply = each.receive()
        assert reply["result"] == IN_PROGRESS
        comms.append(reply["kept"][0])
    for each, comm in zip(ranks, comms, strict=True):
        until(lambda each=each, comm=comm: each("ncclCommGetAsyncError", comm, {"out": 0})[0] == 0)
    for each, comm in zip(ranks, comms, strict=True):
        each.run(f"""
call.part, config = ctypes.c_void_p(), ctypes.create_string_buffer(bytes.fromhex({NOT_BLOCKING["bytes"]!r}))
split = ctypes.CDLL("libnccl.so.2").ncclCommSplit
assert split(ctypes.c_void_p({comm}), 3, 0, ctypes.byref(call.part), config) == {IN_PROGRESS}
assert not call.part.value
""")
    for each, comm in zip(ranks, comms, strict=True):
        each.send(do="run", code=f"""
import time
nccl, error = ctypes.CDLL("libnccl.so.2"), ctypes.c_int({IN_PROGRESS})
while error.value == {IN_PROGRESS}:
    assert nccl.ncclCommGetAsyncError(ctypes.c_void_p({comm}), ctypes.byref(error)) == 0
    time.sleep(0.001)
answer = call.part.value
""")  # fmt: skip
    for each, part in [(each, each.receive()) for each in ranks]:
        assert each.reduce(part) == 0
    gates = [gate_of(each.pid) for each in ranks]
    assert [[(entry.ranks, entry.rank, entry.given) for entry in gate.entries()] for gate in gates] == [
        [(2, number, 0), (2, number, 1)] for number in range(2)
    ]
    assert gates[0].entries()[1].channel == gates[1].entries()[1].channel
    assert not any(gate.unseen for gate in gates)


def test_who_leaves_is_seen_to_have_left(pair):
    (first, second), comms, gates = pair
    first("ncclCommFinalize", comms[0])
    assert gates[0].entries()[0].left
    assert not gates[1].entries()[0].left
    first("ncclCommDestroy", comms[0])
    second("ncclCommAbort", comms[1])
    assert all(entry.left for gate in gates for entry in gate.entries())


# ---- holding ----


def test_nothing_is_begun_beyond_the_limit_until_the_gate_is_open(pair):
    (first, second), comms, (gate, other) = pair
    first.reduce(comms[0])
    gate.ask()
    first.start_reduce(comms[0])
    until(lambda: only(gate).held)
    assert (only(gate).begun, only(gate).given, only(gate).wanted) == (1, 1, 2)
    gate.limit(only(gate), 2)
    gate.ask()
    assert first.receive()["result"] == 0
    assert counts(gate) == (2, 2)
    first.start_reduce(comms[0])
    until(lambda: only(gate).held)
    assert second.reduce(comms[1]) == 0  # nobody asks there
    gate.let_go()
    assert first.receive()["result"] == 0
    assert (counts(gate), counts(other), gate.passed) == ((3, 3), (1, 1), 0)


def test_a_group_is_held_until_all_of_it_may_go(pair):
    (first, _), comms, (gate, _) = pair
    first.send_to(comms[0], 1)
    gate.ask()
    first("ncclGroupStart")
    first.reduce(comms[0])
    first.send_to(comms[0], 1)
    first.send(do="call", name="ncclGroupEnd", arguments=[], way="dlsym")
    until(lambda: only(gate).held and only(gate, Kind.SEND).held)
    gate.limit(only(gate), 1)
    gate.ask()
    until(lambda: not only(gate).held)
    assert only(gate, Kind.SEND).held
    gate.limit(only(gate, Kind.SEND), 2)
    gate.ask()
    assert first.receive()["result"] == 0
    assert (counts(gate), counts(gate, Kind.SEND)) == ((1, 1), (2, 2))


def test_a_launch_of_a_graph_is_held(pair):
    (first, _), comms, (gate, _) = pair
    exec_ = first.new("cuGraphInstantiateWithFlags", captured(first, comms[0], 3), 0)
    gate.ask()
    first.send(do="call", name="cuGraphLaunch", arguments=[exec_, 0], way="dlsym")
    until(lambda: only(gate).wanted == 3)
    assert counts(gate) == (0, 0)
    gate.let_go()
    assert first.receive()["result"] == 0
    assert counts(gate) == (3, 3)


def test_when_nobody_asks_any_more_one_goes_on_within_a_second(pair):
    """The scheduler was killed and has left the gate shut: each process finds out once."""
    (first, _), comms, (gate, _) = pair
    gate.ask()
    took = first.run(f"""
import time
nccl = ctypes.CDLL("libnccl.so.2")
def reduce():
    return nccl.ncclAllReduce(None, None, ctypes.c_size_t(1024), {FLOAT}, {SUM}, ctypes.c_void_p({comms[0]}), None)
begin = time.monotonic()
assert reduce() == 0
once = time.monotonic()
for _ in range(100):
    assert reduce() == 0
answer = [once - begin]
""")
    assert took[0] >= SILENCE
    assert (counts(gate), gate.passed) == ((101, 101), 1)
    gate.ask()  # the next scheduler does
    first.start_reduce(comms[0])
    until(lambda: only(gate).held)
    gate.let_go()
    assert first.receive()["result"] == 0


def test_as_long_as_somebody_asks_one_is_held(pair):
    (first, _), comms, (gate, _) = pair
    ended = threading.Event()

    def keep_asking() -> None:
        while not ended.wait(SILENCE / 4):
            gate.ask()

    gate.ask()
    asking = threading.Thread(target=keep_asking)
    asking.start()
    first.start_reduce(comms[0])
    assert not ended.wait(2 * SILENCE)
    assert only(gate).held
    ended.set()
    asking.join()
    gate.let_go()
    assert first.receive()["result"] == 0
    assert gate.passed == 0


def test_an_abort_lets_go_who_is_held(pair):
    (first, _), comms, (gate, _) = pair
    gate.ask()
    first.run(f"""
nccl = ctypes.CDLL("libnccl.so.2")
call.results = []
def reduce():
    comm = ctypes.c_void_p({comms[0]})
    call.results.append(nccl.ncclAllReduce(None, None, ctypes.c_size_t(1024), {FLOAT}, {SUM}, comm, None))
call.thread = threading.Thread(target=reduce)
call.thread.start()
""")
    until(lambda: only(gate).held)
    assert first("ncclCommAbort", comms[0]) is not None
    assert first.run("call.thread.join()\nanswer = call.results") == [INVALID_USAGE]
    assert gate.entries()[0].left
    assert gate.passed == 0


def test_a_forked_child_has_no_gate(pair):
    (first, _), comms, (gate, _) = pair
    gate.ask()
    assert (
        first.run(f"""
child = os.fork()
if child == 0:
    ctypes.CDLL("libnccl.so.2").ncclAllReduce(
        None, None, ctypes.c_size_t(1024), {FLOAT}, {SUM}, ctypes.c_void_p({comms[0]}), None)
    os._exit(3)
answer = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
""")
        == 3
    )
    assert counts(gate) == (0, 0)
    gate.let_go()
    assert first.reduce(comms[0]) == 0


# ---- what is not seen ----


@pytest.mark.parametrize("name", ["ncclDevCommCreate", "ncclPutSignal", "ncclSignal", "ncclWaitSignal"])
def test_ways_around_the_gate_are_noted(pair, name):
    (first, _), _, (gate, other) = pair
    first.result(name, *[None] * 11)
    assert (gate.unseen, other.unseen) == (Unseen.DEVICE, Unseen(0))


def test_a_second_nccl_goes_its_own_way_and_is_noted(pair, tmp_path):
    (first, _), comms, (gate, _) = pair
    copy = tmp_path / "libother.so"
    copy.write_bytes((BUILD / "sim/libnccl.so.2").read_bytes())
    first.run(f"""
other = ctypes.CDLL({str(copy)!r})
assert other.ncclAllReduce(None, None, ctypes.c_size_t(1024), {FLOAT}, {SUM}, ctypes.c_void_p({comms[0]}), None) == 0
""")
    assert gate.unseen == Unseen.SECOND
    assert counts(gate) == (0, 0)


@pytest.mark.parametrize(
    ("kernel", "what"), [("_Z24ncclDevKernel_AllReduce_X", Unseen.STATIC), ("nvshmem_wait", Unseen.NVSHMEM)]
)
def test_kernels_that_wait_are_known_by_their_names(rank, gate_of, kernel, what):
    program = rank(0)
    text = f".version 6.0\n.target sm_50\n.visible .entry {kernel}\n.visible .entry other\0".encode().hex()
    for number, (load, find) in enumerate(
        [("cuModuleLoadData", "cuModuleGetFunction"), ("cuLibraryLoadData", "cuLibraryGetKernel")]
    ):
        more = [None, None, 0, None, None, 0] if number else []
        module = program.new(load, {"bytes": text}, *more)
        program.new(find, module, {"bytes": (b"other\0").hex()})
        assert gate_of(program.pid).unseen == (what if number else 0)
        program.new(find, module, {"bytes": (kernel.encode() + b"\0").hex()})
        assert gate_of(program.pid).unseen == what


def test_nccls_kernels_are_nothing_to_note_where_its_calls_are_seen(pair):
    (first, _), _, (gate, _) = pair
    text = b".version 6.0\n.target sm_50\n.visible .entry ncclDevKernel\0".hex()
    first.new(
        "cuModuleGetFunction", first.new("cuModuleLoadData", {"bytes": text}), {"bytes": b"ncclDevKernel\0".hex()}
    )
    assert gate.unseen == 0


# ---- trainings ----


def test_trainings_are_stopped_together_and_can_be_locked(card, grants, gate_of):
    """What cannot be without a gate: tests/sim/test_nccl.py."""
    asker = Asker(card, {})
    asker("cuInit", 0)
    words = [sys.executable, "-m", "tests.support.training", "--unique", unique(), "--kernel-ms", "1"]
    both = [
        card.popen([*words, "--rank", str(number), "--device", str(number)], env=grants.env(), stdout=-1)
        for number in range(2)
    ]
    for process in both:
        assert process.stdout.readline() == "ready\n"
        assert process.stdout.readline() == "5\n"
    gates = [gate_of(process.pid) for process in both]
    for _ in range(10):
        assert stop(gates)
        assert only(gates[0]).given == only(gates[1]).given
        assert [asker.lock(process.pid, 5000) for process in both] == [0, 0]
        let_go(gates)
        assert [asker.unlock(process.pid) for process in both] == [0, 0]
    assert sum(gate.passed for gate in gates) == 0
