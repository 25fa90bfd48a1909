"""Who depends on whom in C: on whose headers it includes, and on who defines the symbols that it uses.

The second half is what a reader of includes alone would miss: a header can be a harmless list of declarations whose
definitions lie in five files. The compiler tells it (`cc -c`, `nm`), so that macros and tables that are expanded
count for what they become. A file and its header are one module. Includes are looked for beside a file and in each
folder above it.
"""

import re
import subprocess
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.tree.sources import files, module

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def graph(root: Path) -> dict[str, set[str]]:
    """Module → the modules below `root` that it depends on."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in files(root, ".c", ".h"):
        found[module(root, path)] |= {module(root, each) for each in _included(root, path)}
    with ThreadPoolExecutor() as pool:
        sources = files(root, ".c")
        symbols = dict(zip(sources, pool.map(lambda path: _symbols(root, path), sources), strict=True))
    definers = defaultdict(set)
    for path, (defined, _) in symbols.items():
        for name in defined:
            definers[name].add(module(root, path))
    for path, (_, used) in symbols.items():
        user = module(root, path)
        for name in used:
            found[user] |= _nearest(user, definers.get(name, set()))
    return {name: others - {name} for name, others in found.items()}


def _folders(root: Path, path: Path) -> list[Path]:
    """Its own folder and those above it, up to `root`."""
    return [folder for folder in path.parents if folder == root or root in folder.parents]


def _included(root: Path, path: Path) -> list[Path]:
    found = []
    for name in INCLUDE.findall(path.read_text()):
        places = [(folder / name).resolve() for folder in _folders(root, path)]
        found += [place for place in places if place.is_file()][:1]
    return found


def _symbols(root: Path, path: Path) -> tuple[set[str], set[str]]:
    """Names that the file's object code defines for others, and those that it needs from them."""
    with TemporaryDirectory() as work:
        made = Path(work) / "object.o"
        includes = [f"-iquote{folder}" for folder in _folders(root, path)]
        words = ["cc", "-w", "-O0", "-std=gnu11", "-D_GNU_SOURCE", "-fPIC", *includes, "-c", str(path), "-o", str(made)]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{path.relative_to(root)} does not compile by itself:\n{done.stderr}")
        listed = subprocess.run(["nm", "-P", "-g", str(made)], capture_output=True, text=True, check=True).stdout
    kinds = {line.split()[0]: line.split()[1] for line in listed.splitlines()}
    used = {name for name, kind in kinds.items() if kind in "Uwv"}
    return set(kinds) - used, used


def _nearest(user: str, definers: set[str]) -> set[str]:
    """Two programs of one tree may define the same name (a real call and its stand-in): the nearest is meant."""

    def shared(other: str) -> int:
        same = [a == b for a, b in zip(user.split("/")[:-1], other.split("/")[:-1], strict=False)]
        return same.index(False) if False in same else len(same)

    closest = max(map(shared, definers), default=0)
    return {other for other in definers if shared(other) == closest}
