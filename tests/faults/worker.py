"""Plays rounds, one after the other, on a ground of its own: `python -m tests.faults.worker HOME ENGINE DATABASE`.

A line of standard input is a task, a JSON object with its `kind`; a line of standard output is its result. Results have
`wrong`, a list of sentences. Where that is not empty, what tells how it went is copied to the task's `keep`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.faults.ground import ROOT, Ground

if TYPE_CHECKING:  # they read the settings
    from tests.faults.scene import Scene
    from tests.faults.whole import Whole
    from tests.faults.world import World

Task = dict[str, Any]
Result = dict[str, Any]
ENVIRONMENT = {  # of plays
    "GPUSHARE_IDLE_MINUTES": "0.02",  # whoever may give way (scene.py) is idle a second after it has computed
    "GPUSHARE_IDLE_ACTION": "notify",
    "GPUSHARE_MOVE_SHARE": "100",  # who may go to another card does at once
    "GPUSHARE_SWAP_MEMORY": "3800MiB",  # for one that holds 3 GiB, and a small one
    "GPUSHARE_VOLUME_ROOTS": "/tmp",  # folders of the host that can be given
    "GPUSHARE_PLACEMENT": "spread",  # of a Swarm's hosts the appliance tells which one (handed.py)
    "WATCHDOG_USEC": "2000000",  # as under systemd
}


def main() -> None:
    home, engine, database, *more = sys.argv[1:]
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed is no result
    ground = Ground(Path(home))
    try:
        ground.open(engine, database, redis="redis" in more, small="small" in more)
        import django

        django.setup()
        from scheduler.card import turns

        turns.CYCLE = 0.4
        rounds = Rounds(ground)
        try:
            for line in sys.stdin:
                results.write(json.dumps(rounds.play(json.loads(line))) + "\n")
                results.flush()
        finally:
            rounds.close()
    finally:
        ground.close()


class Rounds:
    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._world: World | None = None

    @property
    def world(self) -> World:
        from tests.faults.world import World

        if self._world is None:
            self._ground.renew()
            self._world = World(self._ground, **ENVIRONMENT)
        return self._world

    def play(self, task: Task) -> Result:
        begun = time.monotonic()
        kinds: dict[str, Callable[[Task], Result]] = {
            "record": self._record,
            "line": self._line,
            "storm": self._storm,
            "soak": self._soak,
        }
        result = kinds[task["kind"]](task)
        if result["wrong"] and "keep" in task:
            self._ground.keep(Path(task["keep"]))
        return {**result, "seconds": round(time.monotonic() - begun, 1)}

    def close(self) -> None:
        if self._world is not None:
            self._world.close()

    def _record(self, task: Task) -> Result:
        """Which lines of these files an undisturbed play comes by: `seen`."""
        folder = self._ground.home / "record"
        folder.mkdir(exist_ok=True)
        for old in folder.glob("*.lines"):
            old.unlink()
        (folder / "files").write_text("\n".join(str(ROOT / file) for file in task["files"]))
        wrong = self._played(f"record:{folder}", task["play"])
        return {"wrong": wrong, "seen": sorted({line for file in folder.glob("*.lines") for line in _words(file)})}

    def _line(self, task: Task) -> Result:
        """A death before each of some lines: `died`, those that were come by."""
        from tests.faults import keepers

        places = " ".join(task["places"])
        if task["play"] == "keepers":
            wrong = self._round(places, lambda: keepers.play(self.world))
        else:
            wrong = self._played(places, task["play"])
        return {"wrong": wrong, "died": sorted(self.world.died)}

    def _played(self, traced: str, play: str) -> list[str]:
        scene = _scene(self.world, play)

        def played() -> list[str]:
            scene.play()
            return scene.wrong()

        return self._round(traced, played, scene.prepare, scene.gpus)

    def _round(
        self,
        traced: str,
        play: Callable[[], list[str]],
        prepare: Callable[[], None] = lambda: None,
        gpus: str = "sim:1x5GiB",
    ) -> list[str]:
        """What is wrong after a play; and once more if a line was come by only when the scheduler stopped."""
        from tests.faults.questions import ask
        from tests.faults.world import Wrong

        world = self.world
        world.renew()
        world.has_cards(gpus)
        prepare()
        world.start(traced=traced)
        try:
            found = play()
        except (Wrong, AssertionError) as fault:
            found = [str(fault)]
        found = found or ask(world)
        died = world.died
        world.stop()
        if world.died > died and not found:
            world.start()
            found = ask(world)
            world.stop()
        return found

    def _storm(self, task: Task) -> Result:
        from tests.faults import storm

        with self._whole() as whole:
            web = whole.web_is
            return {**storm.run(whole, task["harm"], task["seconds"], task["seed"]), "web": web}

    def _soak(self, task: Task) -> Result:
        from tests.faults import soak

        with self._whole(**soak.ENVIRONMENT) as whole:
            web = whole.web_is
            return {**soak.run(whole, task["hours"], task["seed"]), "web": web}

    @contextmanager
    def _whole(self, **environment: str) -> Iterator[Whole]:
        from tests.faults.whole import Whole

        self._ground.renew()
        whole = Whole(self._ground, **environment)
        whole.start()
        try:
            whole.wait_until_ready()
            yield whole
        finally:
            whole.close()


def _scene(world: World, name: str) -> Scene:
    from tests.faults import (
        awaited,
        booked,
        broken_off,
        cards,
        failing,
        handed,
        kept,
        later,
        misbehaving_programs,
        plays,
        quotas,
        runtime_environments,
        turning,
    )

    modules = (
        awaited,
        booked,
        later,
        broken_off,
        cards,
        failing,
        handed,
        kept,
        runtime_environments,
        plays,
        quotas,
        misbehaving_programs,
        turning,
    )
    (play,) = (getattr(module, name.capitalize()) for module in modules if hasattr(module, name.capitalize()))
    scene: Scene = play(world)
    return scene


def _words(file: Path) -> list[str]:
    return file.read_text().split()


if __name__ == "__main__":
    main()
