"""Workers of the card helper with a driver that does more than the simulated one."""

from pathlib import Path

from scheduler.card import helper

_BODY = """
import ctypes, os, runpy

def before(name):
    {before}

def after(name, code):
    {after}

class Driver(ctypes.CDLL):
    def __getattr__(self, name):
        call = super().__getattr__(name)
        if not name.startswith("cuCheckpoint"):
            return call
        def called(*words):
            before(name)
            code = call(*words)
            after(name, code)
            return code
        setattr(self, name, called)
        return called

ctypes.CDLL = Driver
runpy.run_path({worker!r}, run_name="__main__")
"""


def worker(folder: Path, before: str = "pass", after: str = "pass") -> Path:
    """The program of a worker that also does this before and after each call: Python, of `name` and its `code`."""
    program = folder / "worker.py"
    program.write_text(_BODY.format(before=before, after=after, worker=str(helper.WORKER)))
    return program
