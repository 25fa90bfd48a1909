"""Which files the checks look at, and what one module is."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

SUFFIXES = (".py", ".c", ".h")
NOT_OURS = {"var", "node_modules"}  # beside the folders whose names begin with a dot


def files(root: Path, *suffixes: str) -> list[Path]:
    """The source files below `root`, in order."""

    def below(folder: Path) -> Iterator[Path]:
        for path in sorted(folder.iterdir()):
            if path.is_dir():
                if not path.name.startswith(".") and path.name not in NOT_OURS:
                    yield from below(path)
            elif path.suffix in suffixes:
                yield path

    return list(below(root))


def module(root: Path, path: Path) -> str:
    """What a file belongs to: its path without the ending, so that a .c file and its .h are one."""
    return path.relative_to(root).with_suffix("").as_posix()


def crowded(root: Path, most: int) -> dict[str, int]:
    """Folders with more than `most` modules.

    A package's `__init__` is not one more thing to know: it is the folder. Tests are not counted: theirs is a list of
    behaviours, in which one looks for a sentence and not for a part. Nor are migrations: a list that only grows.
    """
    modules = {module(root, path) for path in files(root, *SUFFIXES, ".js") if path.name != "__init__.py"}
    counts = Counter(name.rpartition("/")[0] for name in modules)
    lists = {folder for folder in counts if folder.split("/")[0] == "tests" or folder.endswith("/migrations")}
    return {folder: n for folder, n in sorted(counts.items()) if n > most and folder not in lists}
