"""The scheduler dies before each line, once, of the modules that act; the play goes on, and its facts stay the same."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType

from tests.faults.traced import IN_KEEPERS, KEEPER, ROOT, WORKER

# What acts on the world, or writes down what was done to it. Not the guardian, which is C, nor consoles, volumes of
# Docker's and Kubernetes, which no play uses: tests/faults/results/README.md says where their deaths are tested.
ACTING = (
    "scheduler/worker.py", "scheduler/components.py", "scheduler/starting.py", "scheduler/store/*.py",
    "scheduler/containers/*.py", "scheduler/containers/cards/*.py", "scheduler/sessions/*.py",
    "scheduler/card/*.py", "scheduler/monitors/*.py", "scheduler/monitors/cards/*.py",
    "scheduler/monitors/turns/*.py", "web/audit/*.py",
    "scheduler/core/planned/*.py", "scheduler/core/reserved/*.py", "scheduler/core/moves/*.py",
    "web/services/booked/reservations.py",  # the rest of it runs in web processes: tests/web/test_booked_killed.py
)  # fmt: skip
LEFT_OUT = (
    "web/audit/verifying.py", "web/audit/reading.py", "scheduler/monitors/foreign_processes.py",  # they only read
    "web/audit/verified.py",  # notes what a look at all of it has found: one that was cut off is made again
    "scheduler/card/speeds.py",  # it only reckons
    "scheduler/monitors/verifying.py", "scheduler/monitors/contexts.py",  # daily; once after a start
)  # fmt: skip
# See plays.py, failing.py, awaited.py, broken_off.py, turning.py, later.py, booked.py.
PLAYS = (
    "everyday", "away", "refused", "swapped", "waits", "failing", "unmoved", "given", "awaited", "cut", "stirs",
    "turns", "stuck", "unnamed", "later", "booked", "cards",
)  # fmt: skip
# misbehaving_programs.py, turning.py: the image for Docker has no Python
ENGINES_PLAYS = {"process": ("rude", "asking"), "docker": ("environments",)}
DATABASES_PLAYS = {"postgres": ("kept", "aside")}  # kept.py: a file of this host is not away
TOGETHER_PLAYS = {("process", "postgres"): ("handed",)}  # handed.py: two schedulers, whose containers are processes
TURNS = ("turns", "stuck", "asking")
ENGINE = {
    "process": (
        "scheduler/engines/process/engine.py",
        "scheduler/engines/process/folders.py",
        "scheduler/engines/process/found.py",
        "scheduler/engines/changes.py",
        KEEPER,
    ),
    "docker": (
        "scheduler/engines/docker/*.py",
        "scheduler/engines/docker/launching/*.py",
        "scheduler/engines/changes.py",
    ),
}


def plays(engine: str, database: str) -> list[str]:
    """All that there are with these."""
    more = TOGETHER_PLAYS.get((engine, database), ())
    return [*PLAYS, *ENGINES_PLAYS[engine], *DATABASES_PLAYS.get(database, ()), *more]


def places(engine: str) -> list[str]:
    """Every line at which something is done, as `file:line`: bodies of functions of the acting modules."""
    files = sorted(
        {path for pattern in (*ACTING, *ENGINE[engine]) for path in ROOT.glob(pattern)}
        - {ROOT / file for file in LEFT_OUT}
    )
    return [f"{path.relative_to(ROOT)}:{line}" for path in files for line in sorted(set(_lines(path)))]


def _lines(path: Path) -> Iterator[int]:
    def within(code: CodeType) -> Iterator[int]:
        if code.co_flags & 0x2:  # a function's own, not a module's or a class's body
            yield from (line for _, _, line in code.co_lines() if line is not None and line != code.co_firstlineno)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from within(constant)

    yield from within(compile(path.read_text(), str(path), "exec"))


def plan(seen: dict[str, set[str]], among: list[str]) -> dict[str, str]:
    """For each of these places the first play that comes by it, if one does.

    A keeper's place has no play: its round is another one, and every keeper comes by most of it. A worker that dies
    has a move refused, which not every play takes for an answer.
    """
    found: dict[str, str] = {place: "keepers" for place in among if place.startswith(IN_KEEPERS)}
    for play, places_of_it in seen.items():
        for place in among:
            if place in places_of_it and (play in TURNS or not place.startswith(WORKER)):
                found.setdefault(place, play)
    return {place: found[place] for place in among if place in found}


def why_not(place: str) -> str:
    """What kind of line this is, that no play came by."""
    file, _, line = place.partition(":")
    for node in _errors(file):
        if node.lineno <= int(line) <= (node.end_lineno or node.lineno):
            after = isinstance(node, ast.ExceptHandler)
            return "after an error that did not occur" if after else "raises an error that did not occur"
    return "on a way that no play goes"


@cache
def _errors(file: str) -> list[ast.ExceptHandler | ast.Raise]:
    tree = ast.parse((ROOT / file).read_text())
    return [node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler | ast.Raise)]


def text(place: str) -> str:
    file, _, line = place.partition(":")
    return (ROOT / file).read_text().splitlines()[int(line) - 1].strip()
