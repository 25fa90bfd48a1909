"""Makes one checkpoint call of the CUDA driver after another, as its standard input says.

A line in: "lock PID MILLISECONDS", "checkpoint PID", "restore PID", "unlock PID" or "state PID".
A line out: the CUresult (0: done), the process's state (CUprocessState; −1: unknown) and the seconds that it took.
The first line out, before any is read: "ready VERSION", or "cannot WHY".

Run by helper.py, which ends it when a call hangs: the driver has no way to break one off. A call under way is brought
to its end whatever becomes of the scheduler: no signal but SIGKILL ends this process, and the end of its input only
when it is idle. (Where a worker was killed within a restore, an H200's driver answered nothing more about that one.)

Standard library only: it is started with `python -I -S`. It makes no context, so it takes nothing of a card.
"""

import ctypes
import signal
import sys
import time


class LockArgs(ctypes.Structure):
    """CUcheckpointLockArgs."""

    _fields_ = (("timeout_ms", ctypes.c_uint), ("reserved0", ctypes.c_uint), ("reserved1", ctypes.c_uint64 * 7))


CALLS = {
    "lock": "cuCheckpointProcessLock",
    "checkpoint": "cuCheckpointProcessCheckpoint",
    "restore": "cuCheckpointProcessRestore",
    "unlock": "cuCheckpointProcessUnlock",
}


def begin() -> ctypes.CDLL:
    """Raises OSError or RuntimeError with a sentence if this machine's driver cannot do it."""
    cuda = ctypes.CDLL("libcuda.so.1")
    version = ctypes.c_int()
    if cuda.cuDriverGetVersion(ctypes.byref(version)):
        raise RuntimeError("the driver does not tell its version")
    missing = [name for name in (*CALLS.values(), "cuCheckpointProcessGetState") if not hasattr(cuda, name)]
    if missing:
        raise RuntimeError(
            f"the driver is for CUDA {version.value // 1000}.{version.value % 1000 // 10}; 12.8 brought it"
        )
    if code := cuda.cuInit(0):
        raise RuntimeError(f"cuInit failed with CUDA error {code}")
    print("ready", version.value, flush=True)
    return cuda


def do(cuda: ctypes.CDLL, order: str, pid: int, milliseconds: int = 0) -> tuple[int, int]:
    state = ctypes.c_int(-1)
    code = 0
    if order != "state":
        args = ctypes.byref(LockArgs(milliseconds)) if order == "lock" else None
        code = getattr(cuda, CALLS[order])(pid, args)
    asked = cuda.cuCheckpointProcessGetState(pid, ctypes.byref(state))
    return code or (asked if order == "state" else 0), state.value


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    try:
        cuda = begin()
    except (OSError, RuntimeError, AttributeError) as error:
        print("cannot", error, flush=True)
        return
    for line in sys.stdin:
        order, *numbers = line.split()
        begun = time.monotonic()
        code, state = do(cuda, order, *map(int, numbers))
        try:
            print(code, state, f"{time.monotonic() - begun:.6f}", flush=True)
        except BrokenPipeError:  # nobody is there any more
            return


main()
