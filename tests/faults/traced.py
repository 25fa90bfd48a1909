"""Has a program die by SIGKILL, as the power might fail, just before it would run one of some chosen lines.

They are named as `file:line`, with spaces between them. Each ends one process: who starts after it goes on to the next
of them that it comes by. Only frames of these files are traced, in every thread, so that all else keeps its speed. A
line of a keeper's dies in all keepers that the program starts, one of the card's workers in the first worker that comes
by it. With `record:FOLDER` instead of places nothing dies: which lines of the files named in FOLDER/files are run is
written there, one file a process.
"""

import _thread
import os
import runpy
import shlex
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
KEEPER = "scheduler/engines/process/keeper.py"
WORKER = "scheduler/card/worker.py"
NOTES = "died"
IN_KEEPERS = (KEEPER, "scheduler/engines/process/tree.py")


def died(home: Path) -> set[str]:
    """Before which lines a process of this GPUSHARE_HOME has died."""
    notes = home / NOTES
    return {name.replace("!", "/") for name in os.listdir(notes)} if notes.exists() else set()


def die_before(places: str) -> None:
    """From now on the process ends when it is about to run one of these lines, and leaves a note that it did.

    None dies before a line that another has died before already, but for keepers.
    """
    notes = Path(os.environ["GPUSHARE_HOME"]) / NOTES
    notes.mkdir(exist_ok=True)
    over = died(notes.parent)
    lines: dict[str, set[int]] = {}
    for place in places.split():
        file, _, line = place.partition(":")
        if file in IN_KEEPERS or place not in over:
            lines.setdefault(f"{ROOT}/{file}", set()).add(int(line))

    def in_file(frame: FrameType, event: str, argument: Any) -> Any:
        file = frame.f_code.co_filename
        if event == "line" and frame.f_lineno in lines[file] and _noted(notes, file, frame.f_lineno):
            os.kill(os.getpid(), signal.SIGKILL)
        return in_file

    def entered(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in lines:
            return None
        return in_file(frame, "line", argument)  # a function's first line, too

    if lines:
        _everywhere(entered)


def _noted(notes: Path, path: str, line: int) -> bool:
    file = path.removeprefix(f"{ROOT}/")
    once = file not in IN_KEEPERS
    try:
        note = notes / f"{file}:{line}".replace("/", "!")
        os.close(os.open(note, os.O_WRONLY | os.O_CREAT | os.O_EXCL * once, 0o600))
    except FileExistsError:
        return False
    return True


def record(folder: Path) -> None:
    """Notes which lines are run, as they are, however the process ends; its children do the same."""
    files = set((folder / "files").read_text().split())
    seen: set[tuple[str, int]] = set()
    notes = os.open(folder / f"{os.getpid()}.lines", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def in_file(frame: FrameType, event: str, argument: Any) -> Any:
        place = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and place not in seen:
            seen.add(place)
            os.write(notes, f"{place[0].removeprefix(f'{ROOT}/')}:{place[1]}\n".encode())
        return in_file

    def entered(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        return in_file(frame, "line", argument)

    _everywhere(entered)


def _everywhere(trace: Callable[[FrameType, str, Any], Any]) -> None:
    """In this thread and in all that are started from now on, the bare ones (looks.py) as well."""
    start = _thread.start_new_thread

    def traced(call: Callable[..., Any], arguments: tuple[Any, ...]) -> int:
        def run() -> None:
            sys.settrace(trace)
            call(*arguments)

        return start(run, ())

    _thread.start_new_thread = traced  # type: ignore[assignment]
    threading.settrace(trace)
    sys.settrace(trace)


def in_others(how: str, whose: str) -> None:
    """Of what this process starts by `sys.executable`, KEEPERs or WORKERs (`whose`) are traced."""
    python, me = shlex.quote(sys.executable), f"{shlex.quote(__file__)} {shlex.quote(how)}"
    if whose == KEEPER:  # the engine starts one as `python -SPm MODULE FOLDER`
        traced = f'[ "$1" = -SPm ] && shift && exec {python} {me} -m "$@"'
    else:  # helper.py as `python -I -S FILE`
        traced = f'[ "$3" = {shlex.quote(str(ROOT / WORKER))} ] && exec {python} -I -S {me} "$3"'
    fd, script = tempfile.mkstemp(".sh", "traced-", os.environ["GPUSHARE_HOME"])
    with os.fdopen(fd, "w") as file:
        home = shlex.quote(os.environ["GPUSHARE_HOME"])
        file.write(f'#!/bin/sh\nexport GPUSHARE_HOME={home}\n{traced}\nexec {python} "$@"\n')
    os.chmod(script, 0o755)
    sys.executable = script


def begin(how: str) -> None:
    """Traces this process from now on: places of one kind of process, or `record:FOLDER`."""
    file, _, rest = how.partition(":")
    if file == "record":
        record(Path(rest))
        in_others(how, WORKER)
    elif file in IN_KEEPERS:
        in_others(how, KEEPER)
    elif file == WORKER:
        in_others(how, WORKER)
    else:
        die_before(how)


def main() -> None:
    """In another's place: `traced.py HOW -m MODULE ARGUMENTS`, or `traced.py HOW FILE`."""
    how, *words = sys.argv[1:]
    file, _, rest = how.partition(":")
    sys.path[0] = str(ROOT)
    if file == "record":
        record(Path(rest))
    else:
        die_before(how)
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
