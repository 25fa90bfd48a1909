"""Gives tasks to workers, several at once, and takes their results: see worker.py."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.faults.ground import ROOT

Task = dict[str, Any]
Result = dict[str, Any]
HANGS = 900.0  # seconds beyond what a task says that it takes; nothing in a round waits nearly so long


class Worker:
    """`words`: what comes after HOME in its command."""

    def __init__(self, home: Path, words: list[str]) -> None:
        self._log = home.with_suffix(".log")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.worker", str(home), *words], cwd=ROOT, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            )  # fmt: skip

    def play(self, task: Task) -> Result:
        """Its result; also if the worker hangs or breaks, which is wrong, too."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watch = threading.Timer(HANGS + task.get("seconds", 0.0), self._end)
        watch.start()
        try:
            self._process.stdin.write(json.dumps(task) + "\n")
            self._process.stdin.flush()
            if line := self._process.stdout.readline():
                result: Result = json.loads(line)
                return result
        except BrokenPipeError:
            pass
        finally:
            watch.cancel()
        self._end()  # it may be about to end for ever, and would be given one task after the other
        self._process.wait()
        return {"wrong": [f"the round hangs or breaks:\n{self._log.read_text(errors='replace')[-3000:]}"], "seconds": 0}

    @property
    def broken(self) -> bool:
        return self._process.poll() is not None

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # what a broken one has not read
            self._process.stdin.close()  # type: ignore[union-attr]
        try:
            self._process.wait(120)
        except subprocess.TimeoutExpired:
            self._end()
        self._process.stdout.close()  # type: ignore[union-attr]


def play(tasks: list[Task], home: Path, words: list[str], jobs: int, until: float) -> Iterator[tuple[Task, Result]]:
    """Each task with its result, as they come. No task is begun after `until`, in time.monotonic()'s seconds."""
    home.mkdir(exist_ok=True)
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    results: queue.SimpleQueue[tuple[Task, Result] | None] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)

    def work(number: int) -> None:
        worker = None
        try:
            while time.monotonic() < until:
                task = waiting.get_nowait()
                if worker is None or worker.broken:
                    number += jobs  # what a broken one left is left alone
                    worker = Worker(home / str(number), words)
                results.put((task, worker.play(task)))
        except queue.Empty:
            pass
        finally:
            if worker is not None:
                worker.close()
            results.put(None)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(min(jobs, len(tasks)))]
    for thread in threads:
        thread.start()
    for _ in threads:
        while (found := results.get()) is not None:
            yield found
    for thread in threads:
        thread.join()
