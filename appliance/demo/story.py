"""The main job, played: Figure 3 of the ConVGPU paper, each step printed when it is observed.

Four containers on a card of 5 GiB. A and B run. C allocates inside what is left and is then suspended. D is suspended
at once. B ends, C resumes, D goes on waiting until it fits: until A, who would stay for an hour, is killed.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from appliance.cli.client import Client, Json
from appliance.cli.errors import Problem

MiB = 1 << 20
SIGN_IN_WITHIN = 30  # seconds until it begins without anybody
PAUSE = 3.0  # seconds between two steps, for people who watch
PATIENCE = 30.0  # seconds until a step must have been seen
NOT_LIVE = 409  # it has ended meanwhile, or is not launched yet


class NotObserved(Exception):
    """A step did not happen in time."""


@dataclass(frozen=True, slots=True)
class Part:
    """One container: its quota in MiB, and in how many allocations it takes that and how long it holds it (s)."""

    name: str
    quota: int
    options: Sequence[str]


# Quotas count contexts too, so that they add up alike on a simulated card (66 MiB a context) and a real one (526 MiB).
# Each computes on a part of what it holds: enough to be sure that it works, little enough to be quick on any machine.
HOLDER = Part("demo-a", 1792, ["--check", "16MiB", "--hold", "3600"])


def those_that_end(step: float) -> tuple[Part, Part, Part]:
    """B, C and D. Each holds its memory until the steps before its end were seen. `step`: seconds that a step takes."""
    return (
        Part("demo-b", 1792, ["--check", "16MiB", "--hold", f"{4 + 6 * step:g}"]),
        Part("demo-c", 2304, ["--check", "16MiB", "--chunks", "3", "--hold", f"{1 + 4 * step:g}"]),
        Part("demo-d", 2048, ["--check", "16MiB", "--chunks", "1", "--hold", f"{1 + 2 * step:g}"]),
    )


class Story:
    """Launches the four through REST and watches them there, as any user could.

    `pause`: seconds from one step to the next, for the person who watches.
    """

    def __init__(self, client: Client, image: str, say: Callable[[str], None], *, pause: float = 0) -> None:
        self._client, self._image = client, image
        self._say_line, self._pause, self._patience = say, pause, PATIENCE + 6 * pause
        self._ids: dict[str, str] = {}
        self._began = time.monotonic()

    def play(self) -> None:
        """Raises NotObserved at the first step that is not seen. Nothing of it goes on running after the end."""
        self._clear()  # a demo that was interrupted may have left its containers
        try:
            self._steps()
        except (NotObserved, Problem):
            self._clear()
            raise

    def _steps(self) -> None:
        a, began = HOLDER, time.monotonic()
        self._launch(a)
        self._see(a, "holds its memory", lambda it: it["state"] == "running" and _used(it) > 1000 * MiB)
        # How long a step takes on this machine, with its pauses: the others must not end before it is their turn.
        step = time.monotonic() - began - self._pause
        self._patience += 6 * step
        b, c, d = those_that_end(step)
        self._launch(b)
        self._see(b, "holds its memory", lambda it: it["state"] == "running" and _used(it) > 1000 * MiB)
        self._launch(c)
        self._see(c, "allocated inside what is left and is now suspended", lambda it: it["state"] == "suspended")
        self._launch(d)
        self._see(d, "is suspended at once: the rest is not enough for it", lambda it: it["state"] == "suspended")
        self._see(b, "has ended and gave its memory back", lambda it: it["state"] == "exited")
        self._see(c, "resumes with what B gave back", lambda it: it["state"] in ("running", "exited"))
        self._see(d, "goes on waiting: what is left does not fit it yet", lambda it: it["state"] == "suspended")
        self._client.act({"id": self._ids[a.name]}, "kill")
        self._see(a, "is killed from outside: what it held comes back, too", lambda it: it["state"] == "killed")
        self._see(c, "has ended, its result checked", lambda it: it["state"] == "exited")
        self._see(d, "had its turn and ended, its result checked", lambda it: it["state"] == "exited")

    def _clear(self) -> None:
        names = {part.name for part in (HOLDER, *those_that_end(0))}
        for container in self._client.containers():
            if container["name"] in names:
                try:
                    self._client.act(container, "kill")
                except Problem as problem:
                    if problem.status != NOT_LIVE:
                        raise

    def _launch(self, part: Part) -> None:
        body = {
            "name": part.name,
            "image": self._image,
            "command": ["workload", *part.options],
            "gpu_memory": part.quota * MiB,
        }
        try:
            self._ids[part.name] = self._client.launch(body, pending=lambda command: None)["id"]
        except Problem as problem:
            raise NotObserved(f"{part.name} was not launched: {problem.message}") from None
        self._say(part, f"launched with a quota of {part.quota / 1024:.2f} GiB")

    def _see(self, part: Part, what: str, holds: Callable[[Json], bool]) -> None:
        deadline = time.monotonic() + self._patience
        while True:
            container = self._client.fetch(self._ids[part.name])
            if holds(container):
                break
            over = container["finished_at"] is not None
            if over or time.monotonic() > deadline:
                raise NotObserved(f"{part.name} {what}\n{self._instead(container)}")
            time.sleep(0.05)
        self._say(part, what)

    def _instead(self, container: Json) -> str:
        """What was there instead, with the end of the program's own output."""
        with self._client.stream(f"containers/{container['id']}/logs/") as output:
            log = b"".join(output).decode(errors="replace")
        reason = f" ({container['reason']})" if container["reason"] else ""
        return f"  Instead it is {container['state']}{reason}; the end of its output:\n{log[-500:]}"

    def _say(self, part: Part, what: str) -> None:
        self._say_line(f"  {time.monotonic() - self._began:5.1f} s  {part.name[-1].upper()}  {what}")
        time.sleep(self._pause)


def _used(container: Json) -> int:
    return int(sum(gpu["used"] for gpu in container["gpus"]))
