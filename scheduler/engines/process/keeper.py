"""The keeper of one local container: starts it, waits for it, writes down how it ended. Run with a folder's path.

It outlives the scheduler, so that a restarted one learns the exit codes of what ended meanwhile. In the folder:

    launch.json   written by the engine: {"command": [...], "environment": {...}, "working_dir": path, "log": path,
                  "log_bytes": number}
    running.json  {"boot", "keeper", "keeper_started", "pid", "pid_started", "started_at"}, before the program begins
    ended.partial room on the disk for the next, taken by the engine: an end can be written where nothing else can
    ended.json    {"exit_code", "finished_at", "reason"}, once no process of the container is left
    door          a socket: whoever connects has one more program started in the container (inside.py), until it ends

The folder is locked until the program has started or could not be: of two keepers of one launch, which a scheduler that
was killed over it and the next have started, the second finds that there is nothing to do.

The keeper adopts every orphan below it (subreaper), so a container's processes are exactly its descendants. As with
Docker, the container ends when its first process ends, and what else is left is killed; and a SIGTERM to the keeper is
the first process's. If the keeper itself is killed, the kernel kills the first process with it. What the container
prints goes through the keeper into the log, as far as that is kept (kept.py). On standard output: nothing if the
program was started, else why not.
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scheduler import clock, proc
from scheduler.engines.kept import keep, open_log
from scheduler.engines.process import tree

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
DOOR = "door"
ROOM = 4096  # bytes kept for ended.json
RETRY = 1.0  # seconds
LAST_WORDS = 5.0  # seconds for what is printed still; a process of somebody else's may hold the pipe open


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def write_json(path: Path, content: dict[str, object], *, synced: bool = False) -> None:
    """All or nothing: a reader never sees half a file, a killed writer leaves none. `synced`: nor does a power cut.

    What `keep_room` took is overwritten and only then given back: this needs no new room on the disk.
    """
    partial = path.with_suffix(".partial")
    file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        data = json.dumps(content).encode()
        written = os.write(file, data)
        if written < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(partial))
        os.ftruncate(file, written)
        if synced:
            os.fsync(file)
    finally:
        os.close(file)
    partial.replace(path)


def keep_room(path: Path) -> None:
    """For a `write_json` to come. Raises OSError."""
    try:
        file = os.open(path.with_suffix(".partial"), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return  # by an earlier scheduler, whose container may be writing its end there at this moment
    try:
        os.posix_fallocate(file, 0, ROOM)
    finally:
        os.close(file)


def is_starting(folder: Path) -> bool:
    """Whether a keeper holds it: until then running.json may go again, because its program cannot be started."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def become(
    launch: dict[str, Any], streams: Sequence[int], report: int, parent: int, before: Callable[[], None] | None = None
) -> None:
    """In the new process: turns into the program, over these three streams. Returns only by raising OSError."""
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it died before the line above could tell the kernel
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(
            number, signal.SIG_DFL
        )  # what is ignored stays so in a program: Python ignores some, as nohup does
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
    if before:
        before()
    os.chdir(launch["working_dir"])
    os.set_inheritable(report, False)
    os.execvpe(launch["command"][0], launch["command"], launch["environment"])


def _start(folder: Path) -> "Started | None":
    """Starts the program; None if another keeper has. Raises OSError if it cannot be started."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        mine = folder.exists() and os.path.samestat(os.fstat(lock), folder.stat())  # else it was made anew meanwhile
        return None if not mine or (folder / "running.json").exists() else _start_first(folder)
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


def _start_first(folder: Path) -> "Started":
    launch = json.loads((folder / "launch.json").read_text())
    keeper = os.getpid()
    log = open_log(launch["log"], os.O_WRONLY | os.O_APPEND)
    door = _open_door(folder)
    output, prints = os.pipe()
    reads, writes = os.pipe()
    go_reads, go_writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(go_writes)
            if os.read(go_reads, 1):  # not before the keeper has written who it is
                become(launch, (os.open(os.devnull, os.O_RDONLY), prints, prints), writes, keeper)
        except OSError as error:
            os.write(writes, str(error.errno).encode())
        finally:
            os._exit(127)
    os.close(prints)
    os.close(writes)
    os.close(go_reads)
    _pass_sigterm_on(pid)  # before there is a program that could be meant
    write_json(folder / "running.json", _identity(keeper, pid))
    os.write(go_writes, b"!")
    os.close(go_writes)
    with os.fdopen(reads, "rb") as report:
        if failed := report.read():
            os.waitpid(pid, 0)
            (folder / "running.json").unlink()
            raise OSError(int(failed), os.strerror(int(failed)), launch["command"][0])
    return Started(door, pid, output, log, launch["log_bytes"])


class Started(NamedTuple):
    """The door, the first process, and where what is printed comes out and goes to."""

    door: socket.socket
    pid: int
    output: int
    log: int
    log_bytes: int


def _open_door(folder: Path) -> socket.socket:
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.suppress(FileNotFoundError):
        (folder / DOOR).unlink()
    with address_in(folder) as address:
        door.bind(address)
    door.listen()
    return door


@contextlib.contextmanager
def address_in(folder: Path) -> Iterator[str]:
    """Of the door, in fewer than the 108 bytes of a UNIX address, however deep the folder is. Raises OSError."""
    opened = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{opened}/{DOOR}"
    finally:
        os.close(opened)


def _let_in(door: socket.socket, folder: Path) -> None:
    """In a thread: each who comes gets a process of its own, a child of ours, that does what is asked for."""
    program = [sys.executable, "-SPm", "scheduler.engines.process.inside", str(folder)]
    while True:
        try:
            connection, _ = door.accept()
        except OSError as error:
            if error.errno == errno.EINVAL:  # it is shut
                return
            time.sleep(RETRY)  # no descriptor is left, for now
            continue
        with connection, contextlib.suppress(OSError):  # no process is left: who came sees that we hang up
            actions = [(os.POSIX_SPAWN_DUP2, connection.fileno(), 0)]
            os.posix_spawn(program[0], program, os.environ, file_actions=actions)


def _identity(keeper: int, pid: int) -> dict[str, object]:
    mine, its = proc.stat(keeper), proc.stat(pid)
    assert mine is not None, "a process finds itself"
    assert its is not None, "an unreaped child stays"
    return {
        "boot": boot_id(),
        "keeper": keeper,
        "keeper_started": mine.started,
        "pid": pid,
        "pid_started": its.started,
        "started_at": clock.wall(),
    }


def _pass_sigterm_on(pid: int) -> None:
    program = os.pidfd_open(pid)

    def pass_on(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(program, number)

    signal.signal(signal.SIGTERM, pass_on)


def _wait_for(pid: int) -> int:
    """Reaps orphans until `pid` ends; its exit code, 128 + n for signal n."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _end_the_rest() -> None:
    while True:
        tree.signal_each(tree.descendants(os.getpid()), signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return


def _reason(pid: int, code: int) -> str:
    """That the kernel ended it for lack of memory; empty if it did not, or nobody may know."""
    if code != 128 + signal.SIGKILL:
        return ""
    from scheduler.engines import kernel_log  # a start is not to wait for what few ends need

    return kernel_log.of_process(pid)


def _say_that_it_ended(path: Path, content: dict[str, object]) -> None:
    """Nobody else knows: it is tried for as long as it takes, and while the folder is there."""
    while path.parent.exists():
        try:
            write_json(path, content, synced=True)
        except OSError:
            time.sleep(RETRY)
        else:
            return


def main(folder: Path) -> None:
    if os.fork():
        os._exit(0)  # the keeper has no parent that would have to reap it
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        started = _start(folder)
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", flush=True)
        return
    if started is None:
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # the engine reads until both are closed
    os.dup2(nowhere, 2)
    keeping = threading.Thread(target=keep, args=started[2:], daemon=True)
    keeping.start()
    letting_in = threading.Thread(target=_let_in, args=(started.door, folder), daemon=True)
    letting_in.start()
    code = _wait_for(started.pid)
    started.door.shutdown(socket.SHUT_RDWR)  # what came in after the rest has ended would outlive us
    letting_in.join()
    _end_the_rest()
    said = {"exit_code": code, "finished_at": clock.wall(), "reason": _reason(started.pid, code)}
    keeping.join(LAST_WORDS)
    _say_that_it_ended(folder / "ended.json", said)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
