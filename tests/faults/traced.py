"""Has a program die by SIGKILL, as the power might fail, just before it would run one chosen line: `file:line`.

Only frames of the chosen file are traced, in every thread, so that all else keeps its speed. A line of the keeper's
dies in the keepers that the program starts. With `record:FOLDER` instead of a place nothing dies: which lines of the
files named in FOLDER/files were run is written there, one file a process.
"""

from __future__ import annotations

import _thread
import os
import runpy
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
IN_KEEPERS = (KEEPER, "scheduler/engines/process/tree.py")


_at_end: list[Callable[[], None]] = []


def die_before(file: str, line: int) -> None:
    """From now on the process ends when it is about to run this line, and leaves the note `died` that it did."""
    note = str(Path(os.environ["GPUSHARE_HOME"]) / "died")

    def in_file(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and frame.f_lineno == line:
            os.close(os.open(note, os.O_WRONLY | os.O_CREAT, 0o600))
            os.kill(os.getpid(), signal.SIGKILL)
        return in_file

    def entered(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != file:
            return None
        return in_file(frame, "line", argument)  # a function's first line, too

    _everywhere(entered)


def record(folder: Path) -> None:
    """Notes which lines are run, until the process ends; its children do the same."""
    files = set((folder / "files").read_text().split())
    seen: set[tuple[str, int]] = set()

    def in_file(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            seen.add((frame.f_code.co_filename, frame.f_lineno))
        return in_file

    def entered(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        return in_file(frame, "line", argument)

    def write() -> None:
        lines = [f"{Path(file).relative_to(ROOT)}:{line}\n" for file, line in sorted(seen)]
        (folder / f"{os.getpid()}.lines").write_text("".join(lines))

    _everywhere(entered)
    _at_end.append(write)


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


def die_in_keepers(place: str) -> None:
    """What this process starts by `sys.executable` is traced instead of the process itself."""
    fd, script = tempfile.mkstemp(prefix="traced-", suffix=".sh")
    # The engine starts a keeper as `python -SPm MODULE FOLDER`.
    with os.fdopen(fd, "w") as file:
        file.write(
            f"""#!/bin/sh
[ "$1" = -SPm ] || exec "{sys.executable}" "$@"
shift
export GPUSHARE_HOME="{os.environ["GPUSHARE_HOME"]}"
exec "{sys.executable}" "{__file__}" {place} -m "$@"
"""
        )
    os.chmod(script, 0o755)
    sys.executable = script


def begin(how: str) -> None:
    """Traces this process from now on: `file:line`, or `record:FOLDER`."""
    file, _, rest = how.partition(":")
    if file == "record":
        record(Path(rest))
    elif file in IN_KEEPERS:
        die_in_keepers(how)
    else:
        die_before(str(ROOT / file), int(rest))


def end() -> None:
    for part in _at_end:
        part()


def main() -> None:
    """In a keeper's place: `traced.py FILE:LINE -m MODULE ARGUMENTS`."""
    place, _, module, *arguments = sys.argv[1:]
    file, _, line = place.partition(":")
    sys.path[0] = str(ROOT)
    sys.argv = [module, *arguments]
    die_before(str(ROOT / file), int(line))
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
