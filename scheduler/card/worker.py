"""Makes one checkpoint call of the CUDA driver after another, as its standard input says.

A line in: "lock PID MILLISECONDS", "stop PID MILLISECONDS" (a lock for a turn), "checkpoint PID", "restore PID",
"unlock PID" or "state PID"; "forget" (all whom it has stopped) and "forget PID" are answered by nothing.
A line out: the CUresult (0: done), the process's state (CUprocessState; −1: unknown) and the seconds that it took.
The first line out, before any is read: "ready VERSION", or "cannot WHY".

Run by helper.py, which ends it when a call hangs: the driver has no way to break one off. A call under way is brought
to its end whatever becomes of the scheduler: no signal but SIGKILL ends this process, and the end of its input only
when it is idle. (Where a worker was killed within a restore, an H200's driver answered nothing more about that one.)

At the end of its input it lets go on whom it has stopped for a turn, unless it was ordered to forget them: the guardian
does so as well, but may be gone.

What the driver prints is no answer (CUDA_LOG_FILE=stdout): it goes to the standard error.

Standard library only: it is started with `python -I -S`. It makes no context, so it takes nothing of a card.
"""

import ctypes
import os
import signal
import sys
import time

ANSWERS = os.dup(1)
os.dup2(2, 1)


class LockArgs(ctypes.Structure):
    """CUcheckpointLockArgs."""

    _fields_ = (("timeout_ms", ctypes.c_uint), ("reserved0", ctypes.c_uint), ("reserved1", ctypes.c_uint64 * 7))


class GpuPair(ctypes.Structure):
    """CUcheckpointGpuPair."""

    _fields_ = (("old", ctypes.c_ubyte * 16), ("new", ctypes.c_ubyte * 16))


class RestoreArgs(ctypes.Structure):
    """CUcheckpointRestoreArgs (driver 580)."""

    _fields_ = (
        ("pairs", ctypes.POINTER(GpuPair)),
        ("count", ctypes.c_uint),
        ("reserved", ctypes.c_char * 52),
    )


CALLS = {
    "lock": "cuCheckpointProcessLock",
    "stop": "cuCheckpointProcessLock",
    "checkpoint": "cuCheckpointProcessCheckpoint",
    "restore": "cuCheckpointProcessRestore",
    "unlock": "cuCheckpointProcessUnlock",
}


def begin() -> ctypes.CDLL:
    """Raises OSError or RuntimeError with a sentence if this machine's driver cannot do it."""
    cuda = ctypes.CDLL("libcuda.so.1")
    version = ctypes.c_int()
    if cuda.cuDriverGetVersion(ctypes.byref(version)):
        raise RuntimeError("the driver does not report its version")
    missing = [name for name in (*CALLS.values(), "cuCheckpointProcessGetState") if not hasattr(cuda, name)]
    if missing:
        raise RuntimeError(
            f"the driver is for CUDA {version.value // 1000}.{version.value % 1000 // 10}; 12.8 brought it"
        )
    if code := cuda.cuInit(0):
        raise RuntimeError(f"cuInit failed with CUDA error {code}")
    say("ready", version.value)
    return cuda


def say(*words: object) -> bool:
    """Whether somebody is there to hear it."""
    try:
        os.write(ANSWERS, f"{' '.join(map(str, words))}\n".encode())
    except BrokenPipeError:
        return False
    return True


def restore_args(pairs: tuple[str, ...]) -> RestoreArgs:
    """`pairs`: of two UUIDs in hex each, "old:new"."""
    made = (GpuPair * len(pairs))()
    for pair, words in zip(made, pairs, strict=True):
        pair.old[:], pair.new[:] = map(bytes.fromhex, words.split(":"))
    return RestoreArgs(made, len(pairs))


def do(cuda: ctypes.CDLL, order: str, pid: int, *more: str) -> tuple[int, int]:
    """`more`: of a lock the milliseconds that it may take, of a restore the pairs of cards, if they change."""
    state = ctypes.c_int(-1)
    code = 0
    if order != "state":
        args = None
        if order in ("lock", "stop"):
            args = ctypes.byref(LockArgs(*map(int, more)))
        elif order == "restore" and more:
            args = ctypes.byref(restore_args(more))
        code = getattr(cuda, CALLS[order])(pid, args)
    asked = cuda.cuCheckpointProcessGetState(pid, ctypes.byref(state))
    return code or (asked if order == "state" else 0), state.value


def main() -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(ignored, signal.SIG_IGN)
    try:
        cuda = begin()
    except (OSError, RuntimeError, AttributeError) as error:
        say("cannot", error)
        return
    stopped: set[int] = set()
    for line in sys.stdin:
        order, *words = line.split()
        if order == "forget":
            stopped -= set(map(int, words)) if words else stopped
            continue
        number, *more = words
        pid, begun = int(number), time.monotonic()
        code, state = do(cuda, order, pid, *more)
        if order == "stop" and code == 0:
            stopped.add(pid)
        elif order == "unlock" and code == 0:  # by another worker: this one is ordered to forget it (helper.py)
            stopped.discard(pid)
        if not say(code, state, f"{time.monotonic() - begun:.6f}"):
            break
    for pid in stopped:
        do(cuda, "unlock", pid)


main()
