"""Programs that close or replace the shim's descriptors: it touches none that is not its own, and connects again."""

import socket

import pytest

from shim.binding import FRAME_SIZE, Type, unpack
from tests.support.card import CONTEXT, MIB
from tests.support.eventually import until

OURS = """
import socket, stat
def ours():
    links = {fd: os.path.realpath(f"/proc/self/fd/{fd}") for fd in map(int, os.listdir("/proc/self/fd"))}
    return [fd for fd, link in links.items()
            if "gpushare-lease" in link or ("socket:" in link and os.fstat(fd).st_ino not in theirs)]
theirs = set()
"""

# What programs do to all descriptors that they do not know.
WAYS = {
    "closes them": "for fd in ours(): os.close(fd)",
    "closes all above its own": "os.closerange(64, 4096)",
    "puts a socket in their place": """
mine, other = socket.socketpair()
theirs.update(os.fstat(end.fileno()).st_ino for end in (mine, other))
for fd in ours(): os.dup2(mine.fileno(), fd)
other.setblocking(False)
""",
    "puts its log in their place": """
log = os.open(LOG, os.O_RDWR | os.O_CREAT)
for fd in ours(): os.dup2(log, fd)
os.write(log, b"line of the log\\n" * 100)
""",
}


@pytest.fixture
def replaced(request, grants, program, tmp_path):
    """A program that has done so."""
    cuda = program(grants)
    cuda.use()
    cuda.run(OURS + "import builtins\nbuiltins.before = ours()\nanswer = True")
    code = OURS + WAYS[request.param] + "\nimport builtins\nbuiltins.space = dict(globals())\nanswer = True"
    cuda.run(code.replace("LOG", repr(str(tmp_path / "log"))))
    return cuda


@pytest.mark.parametrize("replaced", WAYS, indirect=True)
def test_what_a_program_put_in_the_place_of_our_descriptors_stays_its_own(replaced, grants, charged, tmp_path):
    address = replaced.new("cuMemAlloc_v2", 8 * MIB)
    replaced("cuMemFree_v2", address)
    replaced.new("cuMemAlloc_v2", 20 * MIB)
    assert [peer.reconnected for peer in grants.peers] == [False, True]
    assert {frame.type for frame in grants.peers[1].frames} <= {Type.NEED, Type.RELEASED}
    untouched = replaced.run("""
import builtins
space = builtins.space
if "mine" in space:
    numbers = [fd for fd in builtins.before if os.fstat(fd).st_ino == os.fstat(space["mine"].fileno()).st_ino]
    try:
        answer = [len(numbers), space["other"].recv(100).hex()]
    except BlockingIOError:
        answer = [len(numbers), "nothing"]
elif "log" in space:
    numbers = [fd for fd in builtins.before if os.fstat(fd).st_ino == os.fstat(space["log"]).st_ino]
    answer = [len(numbers), "nothing" if os.fstat(space["log"]).st_size == 1600 else "something"]
else:
    answer = [2, "nothing"]
""")
    assert untouched == [2, "nothing"]  # connection and page


@pytest.mark.parametrize("replaced", WAYS, indirect=True)
def test_a_forked_child_closes_nothing_of_the_programs(replaced):
    """It forgets its parent's session, and there is another's file under those numbers."""
    status = replaced.run("""
import builtins
numbers = [fd for fd in builtins.before if os.path.exists(f"/proc/self/fd/{fd}")]
child = os.fork()
if child == 0:
    os._exit(0 if all(os.path.exists(f"/proc/self/fd/{fd}") for fd in numbers) else 1)
answer = os.waitpid(child, 0)[1]
""")
    assert status == 0


def test_they_have_high_numbers_and_are_not_inherited(grants, program):
    cuda = program(grants)
    cuda.use()
    assert cuda.run(OURS + "answer = [(fd >= 900, os.get_inheritable(fd)) for fd in ours()]") == [[True, False]] * 2


def test_a_program_with_few_numbers_has_a_session_too(grants, program):
    cuda = program(grants)
    cuda.run("import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40)); answer = True")
    cuda.use()
    assert grants.only_peer().used() == CONTEXT


def test_a_thread_that_waits_notices_that_its_connection_was_closed(grants, program):
    cuda = program(grants)
    cuda.use()
    grants.hold()
    cuda.begin_new("cuMemAlloc_v2", 4 * MIB)
    grants.next_open()
    cuda.run(OURS + "for fd in ours(): os.close(fd)\nanswer = True")
    question = grants.next_open()
    assert question[0].reconnected
    grants.answer(question)
    assert cuda.ended() == 0


def test_a_daemon_begins_a_session_of_its_own(grants, program):
    cuda = program(grants)
    cuda.use()
    status = cuda.run("""
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.closerange(0, write)
    os.closerange(write + 1, 4096)
    import subprocess, sys
    code = '''
import ctypes
lib = ctypes.CDLL("libcuda.so.1")
context, out = ctypes.c_uint64(), ctypes.c_uint64()
raise SystemExit(lib.cuInit(0) or lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
                 or lib.cuCtxSetCurrent(context) or lib.cuMemAlloc_v2(ctypes.byref(out), ctypes.c_size_t(2 << 20)))
'''
    status = subprocess.Popen([sys.executable, "-c", code]).wait()
    os.write(write, b"%d" % status)
    os._exit(0)
os.close(write)
answer = os.read(read, 10).decode()
""")
    assert status == "0"
    assert len({peer.pid for peer in grants.peers}) == 2


@pytest.mark.parametrize("what", ["free", "refused by the card"])
def test_what_needs_no_answer_does_not_wait_for_a_scheduler_that_stands_still(grants_of, program, card, what):
    """The scheduler has ended; the next one has its socket open, and does not get to accepting anybody."""
    cuda = program(grants := grants_of(quota=8000 * MIB, extra=8000 * MIB))
    cuda.use()
    address = cuda.new("cuMemAlloc_v2", 2 * MIB)
    grants.only_peer().page[0].pressure = True
    grants.go_away(leave_socket=False)
    with socket.socket(socket.AF_UNIX) as still:
        still.bind(str(grants.path))
        still.listen(8)
        if what == "free":
            cuda("cuMemFree_v2", address)
        else:
            assert cuda.result("cuMemAlloc_v2", {"out": 0}, 6000 * MIB) == 2
        connection, _ = still.accept()
        with connection:
            said = connection.recv(2 * FRAME_SIZE, socket.MSG_WAITALL)
    types = [unpack(said[:FRAME_SIZE]).type, unpack(said[FRAME_SIZE:]).type]
    assert types[0] == Type.HELLO
    assert types[1] in (Type.RELEASED, Type.PHYSICAL)
    grants.listen()
    cuda.new("cuMemAlloc_v2", 2 * MIB)
    cuda("cuMemFree_v2", cuda.new("cuMemAlloc_v2", 2 * MIB))
    until(lambda: grants.peers[-1].reconnected and not grants.peers[-1].closed)
