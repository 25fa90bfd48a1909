"""Many threads in every kind of memory at once: at each checkpoint what is charged is what the card has."""

import pytest

from tests.support import layouts
from tests.support.card import CONTEXT, MIB

# Each thread takes and gives by its own seed, also what another thread has taken. Nothing is so small that it shares a
# block of the card. A refusal is an answer like another; any other error is a failure. At a checkpoint all threads
# stand still, and pools have given back what they do not need.
WORK = """
import random, queue
ROUNDS, COUNT, SEED, CONTEXT = @ROUNDS@, @COUNT@, @SEED@, @CONTEXT@
u64, size, null = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p(None)
failures, shared = [], queue.Queue()
gate = threading.Barrier(COUNT + 1)
default = u64()
assert lib.cuDeviceGetDefaultMemPool(ctypes.byref(default), 0) == 0
pools = [default]
for _ in range(3):
    pools.append(u64())
    assert lib.cuMemPoolCreate(ctypes.byref(pools[-1]), bytes.fromhex("@POOL@")) == 0
for pool in pools[::2]:
    assert lib.cuMemPoolSetAttribute(pool, 4, ctypes.byref(u64(2**64 - 1))) == 0

def made(what, result, free):
    if result == 0:
        return free
    if result != 2:
        failures.append((what, result))

def plain(chance):
    out = u64()
    return made("plain", lib.cuMemAlloc_v2(ctypes.byref(out), size(chance.choice([2 << 20, 3 << 20, 40 << 20]))),
                lambda: lib.cuMemFree_v2(out))

def pooled(chance):
    out = u64()
    wanted = size(chance.choice([700, 1 << 20, 5 << 20, 17 << 20, 33 << 20]))
    if chance.random() < 0.5:
        result = lib.cuMemAllocAsync(ctypes.byref(out), wanted, null)
    else:
        result = lib.cuMemAllocFromPoolAsync(ctypes.byref(out), wanted, chance.choice(pools), null)
    return made("pooled", result, lambda: lib.cuMemFreeAsync(out, null))

def own_pool(chance):
    pool, out = u64(), u64()
    assert lib.cuMemPoolCreate(ctypes.byref(pool), bytes.fromhex("@POOL@")) == 0
    result = lib.cuMemAllocFromPoolAsync(ctypes.byref(out), size(4 << 20), pool, null)
    if lib.cuMemPoolDestroy(pool):
        failures.append("pool")
    return made("own pool", result, lambda: lib.cuMemFreeAsync(out, null))

def virtual(chance):
    out = u64()
    result = lib.cuMemCreate(ctypes.byref(out), size(chance.choice([2, 6, 20]) << 20), bytes.fromhex("@PROP@"), u64(0))
    return made("virtual", result, lambda: lib.cuMemRelease(out))

def array(chance):
    out = u64()
    result = lib.cuArrayCreate_v2(ctypes.byref(out), bytes.fromhex(chance.choice(["@SMALL@", "@LARGE@"])))
    return made("array", result, lambda: lib.cuArrayDestroy(out))

def graph(chance):
    graph, node, execution = u64(), u64(), u64()
    parameters = ctypes.create_string_buffer(bytes.fromhex("@NODE@"), len("@NODE@") // 2)
    assert lib.cuGraphCreate(ctypes.byref(graph), 0) == 0
    result = lib.cuGraphAddMemAllocNode(ctypes.byref(node), graph, null, size(0), parameters)
    address = u64(int.from_bytes(parameters.raw[-8:], "little"))
    if not result:
        result = lib.cuGraphInstantiateWithFlags(ctypes.byref(execution), graph, u64(0))
        if not result:
            result = lib.cuGraphLaunch(execution, null)
            if not result:
                lib.cuMemFree_v2(address)
            lib.cuGraphExecDestroy(execution)
    lib.cuGraphDestroy(graph)
    made("graph", result, None)

def trim(chance):
    if lib.cuMemPoolTrimTo(chance.choice(pools), size(chance.choice([0, 64 << 20]))):
        failures.append("trim")

def synchronise(chance):
    if lib.cuCtxSynchronize():
        failures.append("synchronise")

KINDS = [plain] * 4 + [pooled] * 8 + [own_pool, virtual, virtual, array, array, graph, trim, synchronise]

def work(index):
    chance, mine = random.Random(SEED * 1000 + index), []
    if lib.cuCtxSetCurrent(u64(CONTEXT)):
        failures.append("context")
    try:
        for _ in range(ROUNDS):
            for _ in range(@TURNS@):
                free = chance.choice(KINDS)(chance)
                if free:
                    (shared.put if chance.random() < 0.3 else mine.append)(free)
                while mine and chance.random() < 0.45:
                    if mine.pop(chance.randrange(len(mine)))():
                        failures.append("free")
                try:
                    if chance.random() < 0.4 and shared.get_nowait()():
                        failures.append("free by another thread")
                except queue.Empty:
                    pass
            gate.wait()
            gate.wait()
    except BaseException as error:
        failures.append(repr(error))
        gate.abort()

import builtins
builtins.stress = gate, failures, pools
for index in range(COUNT):
    threading.Thread(target=work, args=(index,), daemon=True).start()
answer = True
"""

CHECKPOINT = """
import builtins
gate, failures, pools = builtins.stress
gate.wait()
lib.cuCtxSynchronize()
for pool in pools:
    lib.cuMemPoolTrimTo(pool, ctypes.c_size_t(2**64 - 1))
lib.cuDeviceGraphMemTrim(0)
answer = failures
"""

# Takes and gives what it can have, so that the other one's lease is never at rest.
NEIGHBOUR = """
import builtins
builtins.go = True
def take():
    lib.cuCtxSetCurrent(ctypes.c_uint64(@CONTEXT@))
    while builtins.go:
        held = [ctypes.c_uint64() for _ in range(6)]
        taken = [one for one in held if lib.cuMemAlloc_v2(ctypes.byref(one), ctypes.c_size_t(30 << 20)) == 0]
        for one in taken:
            lib.cuMemFree_v2(one)
threading.Thread(target=take, daemon=True).start()
answer = True
"""


def stress(grants, cuda, neighbour, card, *, threads, rounds, turns, seed):
    context = cuda.use()
    neighbour.run(NEIGHBOUR.replace("@CONTEXT@", str(neighbour.use())))
    words = {
        "ROUNDS": rounds,
        "COUNT": threads,
        "TURNS": turns,
        "SEED": seed,
        "CONTEXT": context,
        "POOL": layouts.pool()["bytes"],
        "PROP": layouts.allocation()["bytes"],
        "SMALL": layouts.array(1000, 1000)["bytes"],
        "LARGE": layouts.array(2000, 1000)["bytes"],
        "NODE": layouts.allocation_node(10 * MIB)["bytes"],
    }
    code = WORK
    for word, value in words.items():
        code = code.replace(f"@{word}@", str(value))
    cuda.run(code)
    peer = next(peer for peer in grants.peers if peer.pid == cuda.pid)
    for _ in range(rounds):
        assert cuda.run(CHECKPOINT) == []
        slot = peer.page[0]
        charged, held = slot.used, card.gpus()[0]["held"][cuda.pid]
        assert charged == held, f"charged {charged / MIB} MiB, the card has {held / MIB} MiB"
        assert CONTEXT <= charged <= grants.quota
        assert slot.look(slot.leased) is not None  # no headroom beyond what was granted, no word below zero
        cuda.run("import builtins; builtins.stress[0].wait(); answer = True")
    neighbour.run("import builtins; builtins.go = False; answer = True")


def test_what_is_charged_is_what_the_card_has(grants_of, program, card):
    grants = grants_of(quota=700 * MIB, extra=64 * MIB)
    stress(grants, program(grants), program(grants), card, threads=8, rounds=6, turns=25, seed=1)


@pytest.mark.long  # test_what_is_charged_is_what_the_card_has shows the same
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(4))
def test_what_a_hundred_threads_are_charged_is_what_the_card_has(grants_of, program, card, seed):
    grants = grants_of(quota=3000 * MIB, extra=128 * MIB)
    stress(grants, program(grants), program(grants), card, threads=100, rounds=20, turns=30, seed=seed)
