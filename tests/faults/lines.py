"""The scheduler dies before each line, once, of the modules that act; the play goes on, and its facts stay the same."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

from tests.faults.questions import ask
from tests.faults.scene import Scene, wrong
from tests.faults.traced import IN_KEEPERS, KEEPER, ROOT
from tests.faults.world import World, Wrong

# What acts on the world, or writes down what was done to it.
ACTING = (
    "scheduler/store*.py", "scheduler/store/*.py", "scheduler/worker.py", "scheduler/containers/*.py",
    "scheduler/sessions/*.py", "scheduler/rounds/time_limits.py", "scheduler/rounds/measure.py",
    "web/audit.py",
)  # fmt: skip
ENGINE = {
    "process": ("scheduler/engines/process/engine.py", "scheduler/engines/changes.py", KEEPER),
    "docker": ("scheduler/engines/docker/*.py", "scheduler/engines/changes.py"),
}


def places(engine: str) -> list[str]:
    """Every line at which something is done, as `file:line`: bodies of functions of the acting modules."""
    files = sorted({path for pattern in (*ACTING, *ENGINE[engine]) for path in ROOT.glob(pattern)})
    return [f"{path.relative_to(ROOT)}:{line}" for path in files for line in sorted(set(_lines(path)))]


def _lines(path: Path) -> Iterator[int]:
    def within(code: CodeType) -> Iterator[int]:
        if code.co_flags & 0x2:  # a function's own, not a module's or a class's body
            yield from (line for _, _, line in code.co_lines() if line is not None and line != code.co_firstlineno)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from within(constant)

    yield from within(compile(path.read_text(), str(path), "exec"))


def reached(world: World, among: list[str]) -> list[str]:
    """Those of these places that an undisturbed play comes by. The keeper's lines count as reached: they are few."""
    folder = world.home / "record"
    folder.mkdir()
    (folder / "files").write_text("\n".join({str(ROOT / place.split(":")[0]) for place in among}))
    world.start(traced=f"record:{folder}")
    Scene(world, "undisturbed").play()
    world.stop()
    seen = {line for file in folder.glob("*.lines") for line in file.read_text().split()}
    return [place for place in among if place in seen or place.startswith(IN_KEEPERS)]


def run(world: World, chosen: list[str]) -> int:
    """Plays once for each place. Returns how many rounds had something wrong; prints each."""
    faults = deaths = 0
    for number, place in enumerate(chosen):
        begun, starts = time.monotonic(), world.starts
        world.start(traced=place)
        play = _play_with_keepers if place.startswith(IN_KEEPERS) else _play
        try:
            found = play(world, f"{number}")
        except (Wrong, AssertionError) as fault:
            found = [str(fault)]
        died = world.starts - starts > 1
        deaths += died
        if place.startswith(IN_KEEPERS):  # what is asked next needs keepers that live
            world.stop()
            world.start()
        found = found or ask(world)
        world.stop()
        faults += bool(found)
        what = f"{place} {'died' if died else 'lived'} {time.monotonic() - begun:.1f} s"
        print(what, *found, sep="\n    ", flush=True)
    print(f"{len(chosen)} lines, the scheduler died at {deaths}, {faults} rounds with something wrong")
    return faults


def _play(world: World, tag: str) -> list[str]:
    scene = Scene(world, tag)
    scene.play()
    return wrong(scene.facts())


def _play_with_keepers(world: World, tag: str) -> list[str]:
    """Every keeper dies at the line: a launch may be refused; what was started can be ended, and is accounted for."""
    script = f"echo began; exec {world.workload} --bytes 512MiB --check 1MiB --hold 1"
    launched = world.outcome(world.begin_launch(f"kept-{tag}", "sh", "-c", script))
    assert launched.container is not None
    if launched.outcome == "done":
        world.do("kill", launched.container)
    ended = world.until(lambda: world.get(launched.container).finished_at, "it does not end")  # type: ignore[arg-type]
    left = world.left_of(launched.container)
    return [f"ended at {ended}, and processes of it live: {left}"] * bool(left)


def pick(all_places: list[str], count: int, seed: int) -> list[str]:
    return random.Random(seed).sample(all_places, min(count, len(all_places)))
