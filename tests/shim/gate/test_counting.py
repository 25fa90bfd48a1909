"""What ranks begin is counted at their gates."""

from itertools import pairwise

import pytest

from shim.binding.gate import Kind
from tests.support import layouts
from tests.support.eventually import until
from tests.support.gates import captured, counts, let_go, only, stop
from tests.support.ranks import FLOAT, IN_PROGRESS, SUM, join, split, unique

INVALID_USAGE = 5
NOT_BLOCKING = {"bytes": ((24).to_bytes(8, "little") + bytes(12) + bytes(4)).hex()}
GROUPED = "ncclGroupStart", "ncclGroupEnd"


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
