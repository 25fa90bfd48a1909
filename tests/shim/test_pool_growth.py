"""A pool grows although the sum would fit: what it may grow by is asked for first, or undone before anything waits."""

import pytest

from shim.binding import Type
from tests.shim.test_contexts import new_green
from tests.shim.test_pools import OUT_OF_MEMORY, keep
from tests.support import layouts
from tests.support.card import CONTEXT, MIB

PIECE = 32 * MIB  # what a pool grows by

# Each second block of 16 MiB is free: half of the pool, and no piece is larger than that.
FRAGMENT = """
addresses = [ctypes.c_uint64() for _ in range(COUNT)]
for address in addresses:
    assert lib.cuMemAllocAsync(ctypes.byref(address), ctypes.c_size_t(16 << 20), None) == 0
for address in addresses[::2]:
    assert lib.cuMemFreeAsync(address, None) == 0
answer = True
"""


def fragment(cuda, pieces=4):
    """A pool that has so many pieces reserved, half of them free."""
    keep(cuda)
    cuda.run(FRAGMENT.replace("COUNT", str(2 * pieces)))


def needs(peer):
    return [frame.bytes for frame in peer.frames if frame.type == Type.NEED]


def test_nothing_is_on_the_card_that_is_waited_for(cuda, grants, charged, card):
    fragment(cuda)
    grants.take_back(grants.only_peer())
    grants.hold()
    cuda.start_new("cuMemAllocAsync", 32 * MIB, 0)
    question = grants.next_open()
    assert question[1].bytes == PIECE
    assert card.gpus()[0]["held"][cuda.pid] == grants.only_peer().used() == CONTEXT + 4 * PIECE
    grants.answer(question)
    assert cuda.receive()["result"] == 0
    assert charged(cuda) == 5 * PIECE


def test_a_growth_is_taken_from_the_lease_before_the_driver_is_asked(grants_of, program, card):
    cuda = program(grants := grants_of(extra=512 * MIB))
    cuda.use()
    fragment(cuda)
    cuda.new("cuMemAllocAsync", 16 * MIB, 0)  # into what was freed last
    peer = grants.only_peer()
    before = peer.page[0].headroom
    during = cuda.run("""
import mmap
name = next(f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")
            if "gpushare-lease" in os.path.realpath(f"/proc/self/fd/{fd}"))
page = mmap.mmap(os.open(name, os.O_RDWR), 4096)
taken = []
@ctypes.CFUNCTYPE(None)
def look():
    taken.append(int.from_bytes(page[128:136], "little"))
lib.sim_after(b"cuMemAllocAsync", look)
out = ctypes.c_uint64()
first = int.from_bytes(page[128:136], "little")
assert lib.cuMemAllocAsync(ctypes.byref(out), ctypes.c_size_t(8 << 20), None) == 0
answer = [taken[0] - first, int.from_bytes(page[128:136], "little") - first]
""")
    assert during == [PIECE, 0]  # it did not grow, so nothing of it is left
    assert peer.page[0].headroom == before


def test_beyond_the_quota_a_growth_is_undone_and_what_fits_goes_on(grants_of, program):
    cuda = program(grants := grants_of(quota=CONTEXT + 4 * PIECE))
    cuda.use()
    fragment(cuda)
    assert cuda.result("cuMemAllocAsync", {"out": 0}, 32 * MIB, 0) == OUT_OF_MEMORY
    asked = len(needs(grants.only_peer()))
    cuda.new("cuMemAllocAsync", 8 * MIB, 0)  # it is tried, and fits
    assert len(needs(grants.only_peer())) == asked
    assert grants.only_peer().used() == CONTEXT + 4 * PIECE


def test_near_the_quota_only_what_the_sum_needs_is_asked_for(grants_of, program, card):
    """A driver that can add to the last piece needs no more. This one cannot, so what it grew is undone."""
    cuda = program(grants := grants_of(quota=CONTEXT + 2 * PIECE))
    cuda.use()
    cuda.new("cuMemAllocAsync", 20 * MIB, 0)
    assert cuda.result("cuMemAllocAsync", {"out": 0}, 40 * MIB, 0) == OUT_OF_MEMORY
    assert needs(grants.only_peer()) == [CONTEXT, PIECE, PIECE, 2 * PIECE]
    assert grants.only_peer().used() == card.gpus()[0]["held"][cuda.pid] == CONTEXT + PIECE


def test_a_growth_that_the_card_has_no_room_for_is_waited_for(grants, program, card):
    cuda = program(grants)
    cuda.use()
    fragment(cuda)
    grants.take_back(grants.only_peer())
    grants.hold()
    free = card.gpus()[0]["total"] - card.used()
    hog = card.hold(str(free - CONTEXT))
    cuda.start_new("cuMemAllocAsync", 32 * MIB, 0)
    question = grants.next_open()
    hog.kill()
    hog.wait()
    grants.answer(question)
    assert cuda.receive()["result"] == 0


def test_a_thread_that_the_pool_has_room_for_does_not_wait_with_one_that_needs_more(cuda, grants):
    fragment(cuda)
    grants.take_back(grants.only_peer())
    grants.hold()
    cuda.begin_new("cuMemAllocAsync", 100 * MIB, 0)
    question = grants.next_open()
    cuda.new("cuMemAllocAsync", 8 * MIB, 0)
    grants.answer(question)
    assert cuda.ended() == 0


def test_two_that_fit_into_one_growth_are_both_served_at_the_quota(grants_of, program, card):
    """The second comes when the first one's growth is on the card and not settled yet."""
    cuda = program(grants := grants_of(quota=CONTEXT + PIECE))
    context = cuda.use()
    results = cuda.run(f"""
results = []
def allocate():
    out = ctypes.c_uint64()
    lib.cuCtxSetCurrent(ctypes.c_uint64({context}))
    results.append(lib.cuMemAllocAsync(ctypes.byref(out), ctypes.c_size_t(16 << 20), None))
@ctypes.CFUNCTYPE(None)
def other():
    thread = threading.Thread(target=allocate)
    thread.start()
    thread.join()
lib.sim_after(b"cuMemAllocAsync", other)
allocate()
answer = results
""")
    assert results == [0, 0]
    assert needs(grants.only_peer()) == [CONTEXT, PIECE]  # no refusal that would be reported
    assert grants.only_peer().used() == card.gpus()[0]["held"][cuda.pid] == CONTEXT + PIECE


ALLOCATE = """
results = []
def allocate(mib):
    out = ctypes.c_uint64()
    lib.cuCtxSetCurrent(ctypes.c_uint64(CONTEXT))
    results.append([mib, lib.cuMemAllocAsync(ctypes.byref(out), ctypes.c_size_t(mib << 20), None)])
    return out
kept = []
def at(moment, call, do):
    kept.append(ctypes.CFUNCTYPE(None)(do))
    moment(call, kept[-1])
"""

AGAIN = """
def other():
    thread = threading.Thread(target=allocate, args=(8,))
    thread.start()
    thread.join()
at(MOMENT, other)
"""

# The other thread prepares itself between the first one's look and its effect, and allocates right after that.
BESIDE = """
prepared, grown = threading.Event(), threading.Event()
def work():
    try:
        prepare()
        at(lib.sim_after, b"cuMemAllocAsync", other)
    finally:
        prepared.set()
    grown.wait()
    allocate(8)
thread = threading.Thread(target=work)
def first():
    thread.start()
    prepared.wait()
def other():
    grown.set()
    thread.join()
at(lib.sim_before, b"cuMemAllocAsync", first)
"""

# It knows of a free piece.
CERTAIN = """
def prepare():
    assert lib.cuMemFreeAsync(allocate(8), None) == 0
"""

# And the first one was certain of a piece, which is given back; what was charged for it is in use elsewhere.
HELD_UP = """
assert lib.cuMemFreeAsync(allocate(17), None) == 0
def prepare():
    assert lib.cuMemPoolTrimTo(ctypes.c_uint64(POOL), ctypes.c_size_t(0)) == 0
    assert lib.cuMemFreeAsync(allocate(8), None) == 0
    assert lib.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(32 << 20)) == 0
"""


@pytest.mark.parametrize(
    ("other", "pieces"),
    [
        pytest.param(AGAIN.replace("MOMENT", 'lib.sim_after, b"cuMemAllocAsync"'), 4, id="before it is looked at"),
        pytest.param(AGAIN.replace("MOMENT", 'lib.sim_before, b"cuMemFreeAsync"'), 4, id="before it is undone"),
        pytest.param(CERTAIN + BESIDE, 4, id="certain"),
        pytest.param(HELD_UP + BESIDE, 5, id="beside a certain one that is held up"),
    ],
)
def test_nobody_settles_unseen_in_a_growth_that_is_not_paid(grants_of, program, card, other, pieces):
    """Another thread's allocation lies in what the first one's has brought, so that this cannot be undone."""
    cuda = program(grants := grants_of(quota=CONTEXT + pieces * PIECE))
    context, pool = cuda.use(), cuda.new("cuDeviceGetDefaultMemPool", 0)
    code = (ALLOCATE + other).replace("CONTEXT", str(context)).replace("POOL", str(pool))
    fragment(cuda)
    results = cuda.run(code + "allocate(17)\nanswer = results")
    assert [17, OUT_OF_MEMORY] in results
    assert grants.only_peer().used() == card.gpus()[0]["held"][cuda.pid] == CONTEXT + pieces * PIECE
    cuda.new("cuMemAllocAsync", 8 * MIB, 0)  # what fits still does


# One thread destroys the pool, the other one has a piece of it.
DESTROYED = """
def thread(do):
    thread = threading.Thread(target=do)
    thread.start()
    thread.join()
def allocate():
    out = ctypes.c_uint64()
    lib.cuCtxSetCurrent(ctypes.c_uint64(CONTEXT))
    return lib.cuMemAllocFromPoolAsync(ctypes.byref(out), ctypes.c_size_t(8 << 20), ctypes.c_uint64(POOL), None)
def destroy():
    return lib.cuMemPoolDestroy(ctypes.c_uint64(POOL))
results = []
first, other = ORDER
callback = ctypes.CFUNCTYPE(None)(lambda: thread(lambda: results.append(other())))
MOMENT
results.append(first())
answer = results
"""


@pytest.mark.parametrize("kind", ["own", "default"])
@pytest.mark.parametrize(
    ("order", "moment"),
    [
        pytest.param("(destroy, allocate)", 'lib.sim_before(b"cuMemPoolDestroy", callback)', id="destroyed after it"),
        pytest.param("(allocate, destroy)", 'lib.sim_after(b"cuMemAllocFromPoolAsync", callback)', id="before its end"),
    ],
)
def test_what_a_pool_brings_while_it_is_destroyed_is_charged(cuda, grants, card, kind, order, moment):
    """The driver does not destroy the default pool, and any other one when its last allocation is freed."""
    new, layout = ("cuMemPoolCreate", layouts.pool()) if kind == "own" else ("cuDeviceGetDefaultMemPool", 0)
    pool, context = cuda.new(new, layout), cuda.new("cuCtxGetCurrent")
    code = DESTROYED.replace("ORDER", order).replace("MOMENT", moment).replace("CONTEXT", str(context))
    results = cuda.run(code.replace("POOL", str(pool)))
    assert results.count(0) == (2 if kind == "own" else 1)
    assert grants.only_peer().used() == card.gpus()[0]["held"][cuda.pid] == CONTEXT + PIECE


def test_two_that_make_the_default_pool_known_at_once_charge_it_once(cuda, charged):
    pool = cuda.new("cuDeviceGetDefaultMemPool", 0)
    cuda.run(f"""
def allocate():
    out = ctypes.c_uint64()
    result = lib.cuMemAllocFromPoolAsync(ctypes.byref(out), ctypes.c_size_t(1 << 20), ctypes.c_uint64({pool}), None)
    assert result == 0
other = ctypes.CFUNCTYPE(None)(allocate)
lib.sim_after(b"cuDeviceGetDefaultMemPool", other)  # the shim asks so where it does not know the pool
allocate()
answer = True
""")
    assert charged(cuda) == PIECE


def test_a_free_piece_is_only_certain_on_its_stream(cuda):
    """Another stream may have to wait for the free, and the driver then grows the pool instead."""
    fragment(cuda)
    stream = cuda.new("cuStreamCreate", 0)
    looks = cuda.run(f"""
lib.sim_calls.restype = ctypes.c_uint64
def looks(stream):
    out, before = ctypes.c_uint64(), lib.sim_calls(b"cuMemPoolGetAttribute")
    assert lib.cuMemAllocAsync(ctypes.byref(out), ctypes.c_size_t(1 << 20), ctypes.c_void_p(stream)) == 0
    return lib.sim_calls(b"cuMemPoolGetAttribute") - before
answer = [looks({stream}), looks(None), looks({stream})]
""")
    assert looks == [1, 0, 1]


@pytest.mark.parametrize("kind", ["own", "green"])
def test_a_free_piece_of_the_null_stream_is_only_certain_in_its_context(cuda, kind):
    """Each has a NULL stream of its own: a busy one's piece is no other's (tests/gpu/shim/facts.cu)."""
    keep(cuda)
    looks = """
lib.sim_calls.restype = ctypes.c_uint64
def looks():
    out, before = ctypes.c_uint64(), lib.sim_calls(b"cuMemPoolGetAttribute")
    assert lib.cuMemAllocAsync(ctypes.byref(out), ctypes.c_size_t(1 << 20), None) == 0
    assert lib.cuMemFreeAsync(out, None) == 0
    return lib.sim_calls(b"cuMemPoolGetAttribute") - before
answer = [looks(), looks()]
"""
    assert cuda.run(looks) == [2, 0]  # the first one brings the piece
    own = kind == "own"
    cuda("cuCtxSetCurrent", cuda.new("cuCtxCreate_v2", 0, 0) if own else cuda.new("cuCtxFromGreenCtx", new_green(cuda)))
    assert cuda.run(looks) == [1, 1]


def test_a_free_piece_is_only_certain_in_its_pool(cuda):
    keep(cuda)
    pool = cuda.new("cuMemPoolCreate", layouts.pool())
    looks = cuda.run(f"""
lib.sim_calls.restype = ctypes.c_uint64
def looks(pool):
    out, before = ctypes.c_uint64(), lib.sim_calls(b"cuMemPoolGetAttribute")
    if pool:
        assert lib.cuMemAllocFromPoolAsync(ctypes.byref(out), ctypes.c_size_t(1 << 20), pool, None) == 0
    else:
        assert lib.cuMemAllocAsync(ctypes.byref(out), ctypes.c_size_t(1 << 20), None) == 0
    assert lib.cuMemFreeAsync(out, None) == 0
    return lib.sim_calls(b"cuMemPoolGetAttribute") - before
looks(None)
answer = [looks(None), looks(ctypes.c_uint64({pool})) > 0, looks(ctypes.c_uint64({pool})), looks(None)]
""")
    assert looks == [0, True, 0, 1]


def test_a_destroyed_pool_counts_until_its_last_allocation_is_freed(cuda, charged):
    pool = cuda.new("cuMemPoolCreate", layouts.pool())
    cuda("cuMemPoolSetAttribute", pool, layouts.RELEASE_THRESHOLD, {"out": 2**64 - 1})
    kept = cuda.new("cuMemAllocFromPoolAsync", MIB, pool, 0)
    cuda("cuMemFreeAsync", cuda.new("cuMemAllocFromPoolAsync", 100 * MIB, pool, 0), 0)
    assert charged(cuda) == 5 * PIECE
    cuda("cuMemPoolDestroy", pool)
    assert charged(cuda) == PIECE
    cuda("cuMemFreeAsync", kept, 0)
    cuda("cuCtxSynchronize")
    assert charged(cuda) == 0


@pytest.mark.parametrize("lower", ["trim", "lower threshold"])
def test_a_piece_that_another_thread_gave_back_is_not_counted_on(cuda, charged, lower):
    """What was free for certain has gone; the growth that comes in its place is charged all the same."""
    pool = keep(cuda)
    cuda("cuMemFreeAsync", cuda.new("cuMemAllocAsync", 20 * MIB, 0), 0)
    cuda.run(f"""
def other():
    if {lower!r} == "trim":
        assert lib.cuMemPoolTrimTo(ctypes.c_uint64({pool}), ctypes.c_size_t(0)) == 0
    else:
        assert lib.cuMemPoolSetAttribute(ctypes.c_uint64({pool}), 4, ctypes.byref(ctypes.c_uint64(0))) == 0
        assert lib.cuCtxSynchronize() == 0
        assert lib.cuMemPoolSetAttribute(ctypes.c_uint64({pool}), 4, ctypes.byref(ctypes.c_uint64(2**64 - 1))) == 0
thread = threading.Thread(target=other)
thread.start()
thread.join()
answer = True
""")
    cuda.new("cuMemAllocAsync", 20 * MIB, 0)
    assert charged(cuda) == PIECE


def test_a_piece_that_was_given_back_unseen_is_charged_as_it_comes_back(cuda, charged):
    """64 MiB that the driver gave back at a synchronise hold three of 17 MiB; in new pieces of 32 MiB they do not."""
    cuda("cuMemFreeAsync", cuda.new("cuMemAllocAsync", 64 * MIB, 0), 0)
    cuda("cuCtxSynchronize")
    for count in (1, 2, 3):
        cuda.new("cuMemAllocAsync", 17 * MIB, 0)
        if count > 1:
            assert charged(cuda) == count * PIECE
