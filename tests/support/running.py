"""What runs on this host, by the kernel's word. Whoever ends while it is looked at is as if it had ended before."""

import contextlib
import itertools
import os
from pathlib import Path

from scheduler import proc

_numbers = itertools.count(100)


def seconds() -> str:
    """For a `sleep` that is known by them: no other test on this machine, such as the other engine's, has the same."""
    return f"{os.getpid()}{next(_numbers)}"


def runs(*command: str) -> bool:
    """Whether a process was started with exactly these words."""
    wanted = "".join(f"{word}\0" for word in command).encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            if path.read_bytes() == wanted:
                return True
    return False


def ended(pid: int) -> bool:
    """Also if nobody has waited for it yet."""
    found = proc.stat(pid)
    return found is None or found.state == "Z"


def children(pid: int) -> list[int]:
    """Those that its main thread has started, also if they have ended and it has not waited for them yet."""
    return [int(child) for child in _read(pid, f"task/{pid}/children").split()]


def comm(pid: int) -> str:
    """Its name; nothing if it has ended."""
    return _read(pid, "comm").decode().strip()


def command(pid: int) -> bytes:
    """Its words, each followed by NUL; nothing if it has ended."""
    return _read(pid, "cmdline")


def of_a_scheduler(pid: int) -> dict[str, list[int]]:
    """Its card's helper (workers) and guardian."""
    signs = {"helper": b"card/worker.py", "guardian": b"/guardian\0"}
    words = {child: command(child) for child in children(pid)}
    return {part: [child for child, said in words.items() if sign in said] for part, sign in signs.items()}


def _read(pid: int, file: str) -> bytes:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/{file}").read_bytes()
    return b""
