"""What goes past the gate is noted; trainings are stopped together."""

import sys

import pytest

from shim.binding.gate import Unseen
from tests.sim.test_computing import Asker
from tests.support.card import BUILD
from tests.support.gates import asking, counts, only, stop
from tests.support.ranks import FLOAT, SUM, unique

INVALID_USAGE = 5
NOT_BLOCKING = {"bytes": ((24).to_bytes(8, "little") + bytes(12) + bytes(4)).hex()}
GROUPED = "ncclGroupStart", "ncclGroupEnd"


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
        with asking(*gates):
            assert stop(gates)
            assert only(gates[0]).given == only(gates[1]).given
            assert [asker.lock(process.pid, 5000) for process in both] == [0, 0]
        assert [asker.unlock(process.pid) for process in both] == [0, 0]
    assert sum(gate.passed for gate in gates) == 0
