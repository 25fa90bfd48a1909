"""The folders of local containers (keeper.py), and when one goes: never while a keeper is starting what it says."""

import fcntl
import os
import shutil
from collections.abc import Collection
from pathlib import Path


def forget(folder: Path) -> None:
    """First what says that there is a container: without it the rest is what `forget_cut_launches` takes away."""
    (folder / "running.json").unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def forget_unless_begun(folder: Path) -> bool:
    """Whether it is forgotten: the keeper of a scheduler that was killed over the same launch may come to it late.

    One that is just starting the program is waited for. Raises OSError, and nothing is forgotten.
    """
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one that comes later finds the folder gone
        if (folder / "running.json").exists():
            return False
        shutil.rmtree(folder, ignore_errors=True)
        return True
    finally:
        os.close(lock)


def forget_cut_launches(home: Path, launching: Collection[str]) -> None:
    """Folders of launches that were cut off: the scheduler was killed before it had started a keeper."""
    for folder in home.iterdir():
        if folder.name in launching or not folder.is_dir() or (folder / "running.json").exists():
            continue
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not (folder / "running.json").exists():
                shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass  # its keeper is starting the program
        finally:
            os.close(lock)
