"""One more program in a local container, for as long as somebody holds the connection. Run by its keeper.

Standard input is a SOCK_SEQPACKET connection, over which one message comes, {"command": [...], "tty", "alone"}, with
the program's standard input, output and errors. Answers are {"error"}, or {"pid"} and at its end {"exit_code"}. The
program has the environment and the folder that the container was launched with, and a session of its own. Whoever hangs
up before its end ends the session, or, where it is `alone`, the program. The argument is the container's folder (see
keeper.py).
"""

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import sys
import termios
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from scheduler.engines.base import HANGS_UP
from scheduler.engines.process import tree
from scheduler.engines.process.keeper import PR_SET_PDEATHSIG, become, prctl

MESSAGE = 256 << 10  # bytes; more than a command may have
TERMINAL = "xterm-256color"


def main(folder: Path) -> None:
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # its keeper is the container
    connection = socket.socket(fileno=os.dup(0))
    message, streams, _, _ = socket.recv_fds(connection, MESSAGE, 3)
    asked = json.loads(message)
    launch = json.loads((folder / "launch.json").read_text()) | {"command": asked["command"]}
    if asked["tty"]:
        launch["environment"].setdefault("TERM", TERMINAL)
    try:
        pid = _start(launch, streams, tty=asked["tty"])
    except OSError as error:
        _say(connection, error=f"{asked['command'][0]}: {error.strerror}")
        return
    _say(connection, pid=pid)
    for stream in streams:
        os.close(stream)
    code = _wait(pid, connection, tree.hang_up_alone if asked["alone"] else partial(tree.hang_up, patience=HANGS_UP))
    if code is not None:
        _say(connection, exit_code=code)


def _start(launch: dict[str, Any], streams: list[int], *, tty: bool) -> int:
    """Raises OSError if it cannot be started."""
    reads, writes = os.pipe()
    me = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            become(launch, streams, writes, me, before=_take_terminal if tty else None)
        except OSError as error:
            os.write(writes, str(error.errno).encode())
        finally:
            os._exit(127)
    os.close(writes)
    with os.fdopen(reads, "rb") as report:
        if failed := report.read():
            os.waitpid(pid, 0)
            raise OSError(int(failed), os.strerror(int(failed)))
    return pid


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _wait(pid: int, connection: socket.socket, hang_up: Callable[[int], None]) -> int | None:
    """Its exit code; None if they have hung up, and then it has ended, too."""
    program = os.pidfd_open(pid)
    look = select.poll()
    look.register(program, select.POLLIN)
    look.register(connection, select.POLLIN | select.POLLHUP)
    ready = {descriptor for descriptor, _ in look.poll()}
    if program not in ready:
        hang_up(pid)
    _, status = os.waitpid(pid, 0)
    if program not in ready:
        return None
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _say(connection: socket.socket, **what: object) -> None:
    with contextlib.suppress(OSError):  # they have hung up
        connection.send(json.dumps(what).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
