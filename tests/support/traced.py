"""One thread of a process stopped by a debugger, while the others run: as gdb does in non-stop mode."""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17  # ptrace(2)
ALL_THREADS = 0x40000000  # __WALL


def _ptrace(request: int, thread: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if libc.ptrace(request, thread, None, None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def drivers_thread(pid: int) -> int:
    """The one that carries out what the simulated driver is asked from outside: the last that a simple program has."""
    return max(int(thread.name) for thread in Path(f"/proc/{pid}/task").iterdir())


@contextlib.contextmanager
def traced(thread: int) -> Iterator[None]:
    """Use it in one thread: a tracer is a thread, not a process."""
    _ptrace(SEIZE, thread)
    _ptrace(INTERRUPT, thread)
    os.waitpid(thread, ALL_THREADS)
    try:
        yield
    finally:
        _ptrace(DETACH, thread)
