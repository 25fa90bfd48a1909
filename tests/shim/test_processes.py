"""Threads, forks, execs, process trees, and deaths."""

import random
import signal
import time

import pytest

from shim.binding import Code
from tests.support.card import CONTEXT, MIB
from tests.support.eventually import stands, until

THREADS = """
def work(index):
    out = ctypes.c_uint64()
    lib.cuCtxSetCurrent(ctypes.c_uint64(CONTEXT))
    for turn in range(TURNS):
        size = ctypes.c_size_t((1 + (index + turn) % 5) << 20)
        if lib.cuMemAlloc_v2(ctypes.byref(out), size) == 0:
            assert lib.cuMemFree_v2(out) == 0
threads = [threading.Thread(target=work, args=(index,)) for index in range(COUNT)]
for thread in threads: thread.start()
for thread in threads: thread.join()
answer = True
"""


@pytest.mark.parametrize("extra", [0, 1024 * MIB])
def test_many_threads_leave_nothing_behind(grants_of, program, extra):
    cuda = program(grants := grants_of(quota=CONTEXT + 16 * MIB, extra=extra))
    context = cuda.use()
    cuda.run(THREADS.replace("CONTEXT", str(context)).replace("TURNS", "40").replace("COUNT", "16"))
    assert grants.only_peer().used() == CONTEXT


def test_other_threads_go_on_while_one_waits(grants_of, program):
    cuda = program(grants := grants_of(extra=16 * MIB))
    cuda.use()
    grants.hold()
    cuda.begin_new("cuMemAlloc_v2", 100 * MIB)
    question = grants.next_open()
    for _ in range(3):
        cuda("cuMemFree_v2", cuda.new("cuMemAlloc_v2", 8 * MIB))
    grants.answer(question)
    assert cuda.ended() == 0


def test_several_threads_may_wait_and_are_answered_in_any_order(grants, program):
    cuda = program(grants)
    context = cuda.use()
    grants.hold()
    cuda.wait_in_threads(context, 8)
    questions = [grants.next_open() for _ in range(8)]
    random.Random(3).shuffle(questions)
    for question in questions:
        grants.answer(question, Code.OVER_QUOTA if question[1].bytes == 6 * MIB else Code.OK)
    assert cuda.receive() == [0, 0, 2, 0, 0, 0, 0, 0]


def test_a_signal_does_not_disturb_a_waiting_call(grants, program):
    cuda = program(grants)
    cuda.use()
    cuda.run("import signal; signal.signal(signal.SIGUSR1, lambda *_: None); answer = 1")
    grants.hold()
    cuda.start_new("cuMemAlloc_v2", 4 * MIB)
    question = grants.next_open()
    for _ in range(5):
        cuda.process.send_signal(signal.SIGUSR1)
        time.sleep(0.01)
    grants.answer(question)
    assert cuda.receive()["result"] == 0


def test_a_fork_before_cuda_is_initialised(grants, program):
    """The child is a process of its own, with a session and a lease of its own."""
    cuda = program(grants)
    status = cuda.run("""
child = os.fork()
if child == 0:
    context, out = ctypes.c_uint64(), ctypes.c_uint64()
    results = [lib.cuInit(0), lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
               lib.cuCtxSetCurrent(context), lib.cuMemAlloc_v2(ctypes.byref(out), ctypes.c_size_t(4 << 20))]
    os._exit(sum(results))
answer = os.waitpid(child, 0)[1]
""")
    assert status == 0
    cuda.use()
    assert [peer.pid == cuda.pid for peer in grants.peers] == [False, True]
    assert grants.peers[1].used() == CONTEXT


def test_a_fork_after_it(grants, program, charged):
    """CUDA does not work in such a child; nothing that it does may touch what its parent holds, or crash."""
    cuda = program(grants)
    cuda.use()
    address = cuda.new("cuMemAlloc_v2", 4 * MIB)
    pooled = cuda.new("cuMemAllocAsync", 4 * MIB, 0)
    status = cuda.run(f"""
child = os.fork()
if child == 0:
    out = ctypes.c_uint64()
    results = [lib.cuMemAlloc_v2(ctypes.byref(out), ctypes.c_size_t(4 << 20)),
               lib.cuMemFree_v2(ctypes.c_uint64({address})),
               lib.cuMemFreeAsync(ctypes.c_uint64({pooled}), None), lib.cuMemGetInfo_v2(ctypes.byref(out), None),
               lib.cuMemAllocAsync(ctypes.byref(out), ctypes.c_size_t(1), None),
               lib.cuDevicePrimaryCtxReset_v2(0)]
    os._exit(0 if all(results) else 1)
answer = os.waitpid(child, 0)[1]
""")
    assert status == 0
    assert charged(cuda) == 36 * MIB
    cuda("cuMemFree_v2", address)
    assert charged(cuda) == 32 * MIB


def test_a_fork_while_a_thread_waits(grants, program):
    cuda = program(grants)
    context = cuda.use()
    grants.hold()
    cuda.run(f"""
def wait():
    out = ctypes.c_uint64()
    lib.cuCtxSetCurrent(ctypes.c_uint64({context}))
    lib.cuMemAlloc_v2(ctypes.byref(out), ctypes.c_size_t(4 << 20))
threading.Thread(target=wait, daemon=True).start()
answer = True
""")
    question = grants.next_open()
    status = cuda.run("""
child = os.fork()
if child == 0:
    out = ctypes.c_uint64()
    os._exit(0 if lib.cuMemAlloc_v2(ctypes.byref(out), ctypes.c_size_t(4 << 20)) else 1)
answer = os.waitpid(child, 0)[1]
""")
    assert status == 0
    grants.answer(question)
    until(lambda: grants.peers[0].used() == CONTEXT + 4 * MIB)


def test_exec_begins_anew(grants, program, card):
    cuda = program(grants)
    cuda.use()
    cuda.send(
        do="run", code="import sys; os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(60)'])"
    )
    until(lambda: grants.peers[0].closed)
    card.wait_until_empty()


def test_a_tree_of_processes_as_mpi_starts_them(grants, program):
    """Each has a session; together they are the container."""
    cuda = program(grants)
    codes = cuda.run("""
import subprocess, sys
code = '''
import ctypes
lib = ctypes.CDLL("libcuda.so.1")
context, out = ctypes.c_uint64(), ctypes.c_uint64()
ok = [lib.cuInit(0), lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), lib.cuCtxSetCurrent(context),
      lib.cuMemAlloc_v2(ctypes.byref(out), ctypes.c_size_t(2 << 20))]
raise SystemExit(sum(ok))
'''
ranks = [subprocess.Popen(["/bin/sh", "-c", 'exec "$0" -c "$1"', sys.executable, code]) for _ in range(8)]
answer = [rank.wait() for rank in ranks]
""")
    assert codes == [0] * 8
    assert len({peer.pid for peer in grants.peers}) == 8
    assert {peer.page[0].leased for peer in grants.peers} == {CONTEXT + 2 * MIB}


STORM = """
import random, time
chance = random.Random(os.getpid())
context, out = ctypes.c_uint64(), ctypes.c_uint64()
lib.cuInit(0)
while lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0): time.sleep(0.01)
lib.cuCtxSetCurrent(context)
held = []
while True:
    if held and chance.random() < 0.5:
        lib.cuMemFree_v2(held.pop(chance.randrange(len(held))))
    else:
        out = ctypes.c_uint64()
        if lib.cuMemAlloc_v2(ctypes.byref(out), ctypes.c_size_t(chance.choice([100, 1 << 20, 3 << 20]))) == 0:
            held.append(out)
    time.sleep(chance.random() / 100)
"""


@pytest.mark.parametrize("card", ["sim:1x5GiB"], indirect=True)
def test_processes_killed_at_random_leave_nothing(grants_of, program, card):
    """A short storm; tests/scheduler/test_storm.py is the long one, on the real scheduler."""
    grants = grants_of(quota=4096 * MIB, extra=8 * MIB)
    chance = random.Random(1)
    programs = [program(grants) for _ in range(8)]
    for one in programs:
        one.send(do="run", code=STORM)
    until(lambda: len(grants.peers) == 8 and all(peer.used() >= CONTEXT for peer in grants.peers))
    time.sleep(1)
    survivors = chance.sample(programs, 3)
    for one in programs:
        if one not in survivors:
            one.process.kill()
            one.process.wait()
    pids = {one.pid for one in survivors}
    until(lambda: {peer.pid for peer in grants.peers if not peer.closed} == pids)
    for one in survivors:
        one.process.send_signal(signal.SIGSTOP)
    until(lambda: all(stands(one.pid) for one in survivors))
    for peer in grants.peers:
        if not peer.closed:
            assert CONTEXT <= peer.used() <= peer.page[0].leased <= 4096 * MIB
    until(lambda: set(card.gpus()[0]["held"]) == pids)
