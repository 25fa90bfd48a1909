"""While a scheduler asks, ranks begin nothing beyond its limits."""

from shim.binding.gate import SILENCE, Kind
from tests.support.eventually import until
from tests.support.gates import asking, captured, counts, only
from tests.support.ranks import FLOAT, SUM

INVALID_USAGE = 5
NOT_BLOCKING = {"bytes": ((24).to_bytes(8, "little") + bytes(12) + bytes(4)).hex()}
GROUPED = "ncclGroupStart", "ncclGroupEnd"


# ---- holding ----


def test_nothing_is_begun_beyond_the_limit_until_the_gate_is_open(pair):
    (first, second), comms, (gate, other) = pair
    first.reduce(comms[0])
    with asking(gate):
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
    assert first.receive()["result"] == 0
    assert (counts(gate), counts(other), gate.passed) == ((3, 3), (1, 1), 0)


def test_a_group_is_held_until_all_of_it_may_go(pair):
    (first, _), comms, (gate, _) = pair
    first.send_to(comms[0], 1)
    with asking(gate):
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
    with asking(gate):
        first.send(do="call", name="cuGraphLaunch", arguments=[exec_, 0], way="dlsym")
        until(lambda: only(gate).wanted == 3)
        assert counts(gate) == (0, 0)
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
    with asking(gate):  # the next scheduler does
        first.start_reduce(comms[0])
        until(lambda: only(gate).held)
    assert first.receive()["result"] == 0


def test_as_long_as_somebody_asks_one_is_held(pair):
    (first, _), comms, (gate, _) = pair
    with asking(gate):
        first.start_reduce(comms[0])
        until(lambda: only(gate).held)
        before = gate.asked
        until(lambda: gate.asked > before + 40)  # two SILENCEs later
        assert only(gate).held
    assert first.receive()["result"] == 0
    assert gate.passed == 0


def test_an_abort_lets_go_who_is_held(pair):
    (first, _), comms, (gate, _) = pair
    with asking(gate):
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
