"""Programs that would hold up everybody else, and one that would notice: for tests, and for benchmarks.bystander.

Each attack is a program that is given a container's socket folder, says "attacking" and goes on until it is killed. It
does by hand, and worse, what a shim would never do.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

BEGIN = """
import os
os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
import array, ctypes, selectors, socket, struct, sys, threading, time
from pathlib import Path
from shim.binding import FRAME_SIZE, WIRE_VERSION, Frame, Type, pack
from tests.support.raw import Raw
directory = Path(sys.argv[1])
HELLO = Frame(Type.HELLO, code=WIRE_VERSION)

def attacking():
    print("attacking", flush=True)

def welcomed():
    "Also where an earlier attack has left the backlog full: it is let in when that is through."
    raw = Raw(directory)
    raw.socket.settimeout(60)
    raw.hello()
    return raw

def flood(frames):
    "For ever, reading what is answered; whose connection is closed, as it reads too slowly, comes again."
    while True:
        try:
            flood_one(welcomed(), frames)
        except OSError:
            pass

def flood_one(raw, frames):
    raw.socket.setblocking(False)
    with selectors.DefaultSelector() as poll:
        sent = 0
        poll.register(raw.socket, selectors.EVENT_READ | selectors.EVENT_WRITE)
        while True:
            for _, ready in poll.select():
                if ready & selectors.EVENT_READ and not raw.socket.recv(1 << 16):
                    return raw.close()
                if ready & selectors.EVENT_WRITE:
                    sent = (sent + raw.socket.send(frames[sent:])) % len(frames)

def in_threads(count, work):
    threads = [threading.Thread(target=work) for _ in range(count)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
"""

ATTACKS = {
    "calls beyond the quota": """
attacking()
flood(b"".join(pack(Frame(Type.NEED, 0, serial, 0, 1 << 60)) for serial in range(1, 5000)))
""",
    "calls that wait": """
attacking()
flood(b"".join(pack(Frame(Type.NEED, 0, serial, 0, 900 << 20)) for serial in range(1, 5000)))
""",
    "RELEASED": """
attacking()
flood(pack(Frame(Type.RELEASED)) * 5000)
""",
    "connections": """
def come_and_go():
    while True:
        try:
            raw = Raw(directory); raw.send(HELLO); raw.close()
        except OSError:
            pass
attacking()
in_threads(8, come_and_go)
""",
    "processes": """
def begin():
    child = os.fork()
    if child == 0:
        try:
            welcomed()
        finally:
            os._exit(0)
    return child
attacking()
while True:
    for child in [begin() for _ in range(8)]:
        os.waitpid(child, 0)
""",
    "connections that say nothing": """
kept = []
attacking()
while True:
    try:
        raw = Raw(directory)
        kept.append(raw)
    except OSError:
        time.sleep(0.01)
""",
    "passed descriptors": """
def lingering():
    "A socket that takes ten seconds to close: it has something to send, and nobody reads."
    listener = socket.create_server(("127.0.0.1", 0))
    ours = socket.create_connection(listener.getsockname())
    theirs.append(listener.accept()[0])
    listener.close()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 10))
    ours.setblocking(False)
    try:
        while True:
            ours.send(bytes(1 << 16))
    except BlockingIOError:
        return ours
theirs = []
passes = 0
while True:
    given = lingering()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [given.fileno()]))]
    try:
        raw = Raw(directory)
        raw.socket.sendmsg([pack(HELLO)[:7] + b"junk" if passes % 2 else pack(HELLO)], rights)
    except OSError:
        pass
    given.close()
    passes += 1
    if passes == 1:
        attacking()
    time.sleep(0.02)
    if len(theirs) > 100:
        theirs.pop(0).close()
""",
    "maps": """
import mmap, resource, tempfile
folder = tempfile.mkdtemp()
os.chdir(folder)
while len(folder) < 3800:
    name = "x" * min(250, 3900 - len(folder))
    os.mkdir(name); os.chdir(name)
    folder += "/" + name
file = os.open("f", os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 1 << 28)
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
os.unlink("f")
raw = welcomed()
for page in range(60000):
    libc.mmap(None, 4096, 1 + page % 2, 2, file, (59999 - page) * 4096)
attacking()
while True:
    try:
        again = Raw(directory); again.send(HELLO)
        time.sleep(0.05)
    except OSError:
        pass
""",
    "output": """
attacking()
line = b"x" * 99 + bytes([10])
while True:
    os.write(1, line * 600)
""",
}

BYSTANDER = """
import json, signal, sys, time
from pathlib import Path
from tests.support.raw import Raw
from shim.binding import Type
raw = Raw(Path(sys.argv[1])); raw.socket.settimeout(60); page = raw.hello()
took, on = [], []
signal.signal(signal.SIGTERM, lambda *_: on.clear())
signal.signal(signal.SIGUSR1, lambda *_: took.clear())
on.append(True)
print("allocating", flush=True)
serial = 0
while on:
    serial += 1
    begun = time.perf_counter()
    raw.need(4096, serial)
    answer = raw.read()
    took.append(time.perf_counter() - begun)
    assert answer.type == Type.GRANTED and answer.serial == serial, answer
    page[0].accept(answer.bytes)
    time.sleep(0.002)
print(json.dumps(took), flush=True)
"""


def _begin(program: str, *words: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    if not process.stdout.readline():
        raise RuntimeError("the program did not begin")
    return process


@contextmanager
def attack(name: str, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process attacks through this container's socket, until the end of the block.

    Whatever priority it is started with, it has none over others.
    """
    process = _begin(BEGIN + ATTACKS[name], str(directory))
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class Bystander:
    """A process of another container, which asks for more than its lease has, again and again.

    As BYSTANDER says it: SIGUSR1 has it forget what its calls took so far, SIGTERM has it tell, and end.
    """

    def __init__(self, directory: Path) -> None:
        self._process = _begin(BYSTANDER, str(directory))

    def forget(self) -> None:
        self._process.send_signal(signal.SIGUSR1)

    def stop(self) -> list[float]:
        """The seconds that each of its calls took; each was granted."""
        self._process.send_signal(signal.SIGTERM)
        out, _ = self._process.communicate(timeout=60)
        took: list[float] = json.loads(out)
        return took
