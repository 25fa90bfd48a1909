"""A play of programs that break the rules of their socket, hang up, exec, forge their page, and ask for too much.

With local processes only: Docker's image has no Python, and what it is about is the same code.
"""

import sys

from scheduler.sessions.processes import OPEN_CALLS
from tests.faults.plays import _BY_HAND, _LIFE, HOLD
from tests.faults.scene import Scene
from tests.faults.world import GIB, ROOT
from web.models import Container

# Whatever is done is done again from the start when the scheduler dies over it; the container's socket comes back.
_BEGIN = f"""
import os, resource, signal, sys, time
sys.path[:0] = {[str(ROOT), *sys.path]!r}
from pathlib import Path
from tests.support.raw import *
FOLDER, MIB = Path(os.environ["GPUSHARE_SOCKET"]).parent, 1 << 20
kept = []

def made(deed):
    for _ in range(300):
        try:
            raw = Raw(FOLDER)
            kept.append(raw)
            found = deed(raw)
            raw.close()
            return found
        except (OSError, AssertionError, AttributeError) as error:  # the scheduler died: no answer
            last = error
            time.sleep(0.1)
    raise last

HELLO = pack(Frame(Type.HELLO, code=WIRE_VERSION))
"""

_BREAKER = """
def sends(*data):
    def send(raw):
        for part in data:
            raw.send_bytes(part)
        assert raw.is_closed()
    return send

def byte_by_byte(raw):
    for byte in HELLO:
        raw.send_bytes(bytes([byte]))
        time.sleep(0.001)
    assert raw.read().type == Type.WELCOME

def flood(raw):
    raw.hello()
    raw.socket.settimeout(None)
    needs = b"".join(pack(Frame(Type.NEED, 0, serial, 0, 2**63)) for serial in range(1000))
    try:
        while True:
            raw.send_bytes(needs)
    except OSError:
        pass

def complains(raw):
    raw.hello()
    raw.send(Frame(Type.PHYSICAL, 0, 0, 0, MIB), Frame(Type.RELEASED))
    raw.need(100 << 30, 5)
    assert raw.read().type == Type.REJECTED

def crowd(raw):
    many = [Raw(FOLDER) for _ in range(80)]
    for each in many:
        each.close()

def halved(raw):
    raw.send_bytes(HELLO[:5])

for deed in (
    sends(pack(Frame(Type.NEED, 0, 1, 0, MIB))), sends(HELLO, HELLO), sends(b"\\xff" * FRAME_SIZE),
    sends(HELLO, pack(Frame(Type.RELEASED, 65535))), sends(HELLO, pack(Frame(Type.NEED, 0, 1, 7, MIB))),
    sends(HELLO, pack(Frame(Type.WELCOME))), byte_by_byte, flood, complains,
    halved, crowd,
):
    made(deed)
print("broke all rules", flush=True)
"""

# Its page says more than it was given; then it is a program that has none.
_FORGER = """
def forges(raw):
    page = raw.hello()
    page[0].extend(1 << 30)
    page[0].reserve(1 << 30)
    raw.need(MIB, 9)
    assert raw.read() is not None

made(forges)
time.sleep(2)
print("forged", flush=True)
signal.pause()
"""

# Asks for more than there is, hangs up, asks again for the same; and after a while for something else no more.
_HANGER = """
def waits(raw):
    raw.hello()
    raw.need(3 << 30, 7)
    print("waits", flush=True)
    raw.socket.settimeout(0.5)
    try:
        raw.read()
    except TimeoutError:
        pass

made(waits)
made(waits)
signal.pause()
"""

# More open calls than are weighed at once; all are answered in the end.
_ASKER = (
    f"CALLS = {OPEN_CALLS + 40}"
    + """
def asks(raw):
    raw.hello()
    raw.socket.settimeout(60)
    for serial in range(CALLS):
        raw.need(12 * MIB, serial)
    print("asks", flush=True)
    for _ in range(CALLS):
        assert raw.read() is not None

made(asks)
print("answered", flush=True)
"""
)

# Once more the same, which has its memory when what it was before has given it back; then one without CUDA.
_EXECS = """
from tests.support.cuda import *
cuda = Cuda()
cuda.alloc(512 * MIB)
if not sys.argv[1:]:
    os.execv(sys.executable, [*Path("/proc/self/cmdline").read_text().split("\\0")[:3], "again"])
print("holding", flush=True)
os.execvp("sleep", ["sleep", "600"])
"""


class Rude(Scene):
    expected = {
        "breaker": (("exited", (0,), "", _LIFE, 1),),
        "asker": (("exited", (0,), "", _LIFE, 1),),
        "forger": (_BY_HAND,),
        "hanger": (_BY_HAND,),
        "execs": (_BY_HAND,),
        "holder": (_BY_HAND,),
    }

    def play(self) -> None:
        world = self.world
        self._launch("holder", HOLD, gpu_memory=3 * GIB + GIB // 4)
        self._says("holder", "holding")
        self._launched({
            name: self.world.begin_launch(name, "sh", "-c", 'echo began; exec "$0" -c "$1"', sys.executable,
                                          _BEGIN + program, gpu_memory=size, give_way=False)
            for name, program, size in (
                ("breaker", _BREAKER, GIB // 8), ("forger", _FORGER, GIB // 8), ("execs", _EXECS, GIB),
                ("hanger", _HANGER, 4 * GIB), ("asker", _ASKER, 5 * GIB - GIB // 8),
            )
        })  # fmt: skip
        for name, words in (("forger", "forged"), ("execs", "holding"), ("hanger", "waits"), ("asker", "asks"),
                            ("breaker", "broke all rules")):  # fmt: skip
            self._says(name, words)
        (world.home / "sockets" / str(self.made["execs"].pk) / "gpushare.sock").unlink(missing_ok=True)
        for name in ("holder", "execs", "forger", "hanger"):
            self._done(world.do("kill", self.made[name], grace=0.0))
        for name in ("asker", "breaker"):
            world.until_state(self.made[name], "exited")
        for container in Container.objects.filter(removed_at=None):
            self._done(world.do("remove", container))
        self._all_over()
