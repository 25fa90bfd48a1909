"""The main job, played: Figure 3 of the ConVGPU paper, told as it is observed.

Four containers on a card of 5 GiB. A and B run. C allocates inside what is left and is then suspended. D is suspended
at once. B ends, C resumes, D goes on waiting until it fits: until A, who would stay for an hour, is killed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

MiB = 1 << 20
PAUSE = 3.0  # seconds between two steps, for people who watch

Container = dict[str, Any]
Tell = Callable[[str], None]


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
def cast(pause: float) -> tuple[Part, Part, Part, Part]:
    """A, B, C and D. They hold what they have for as long as it takes to follow, with such pauses between the steps."""
    return (
        Part("demo-a", 1792, ["--check", "16MiB", "--hold", "3600"]),
        Part("demo-b", 1792, ["--check", "16MiB", "--hold", f"{4 + 6 * pause:g}"]),
        Part("demo-c", 2304, ["--check", "16MiB", "--chunks", "3", "--hold", f"{1 + 4 * pause:g}"]),
        Part("demo-d", 2048, ["--check", "16MiB", "--chunks", "1", "--hold", f"{1 + 2 * pause:g}"]),
    )


class Story:
    """Launches the four through REST and watches them there, as any user could.

    `pause`: seconds from one step to the next, for whoever looks. `patience`: until a step must have been seen.
    """

    def __init__(
        self, client: httpx.AsyncClient, image: str, tell: Tell, *, pause: float = 0, patience: float = 30
    ) -> None:
        self._client, self._image = client, image
        self._tell, self._pause, self._patience = tell, pause, patience + 6 * pause
        self._parts = cast(pause)
        self._ids: dict[str, str] = {}
        self._began = time.monotonic()

    async def play(self) -> None:
        """Raises NotObserved at the first step that is not seen. Nothing of it goes on running after the end."""
        await self._clear()  # a demo that was interrupted may have left its containers
        try:
            await self._steps()
        except NotObserved:
            await self._clear()
            raise

    async def _steps(self) -> None:
        a, b, c, d = self._parts
        for part in (a, b):
            await self._launch(part)
            await self._see(part, "holds its memory", lambda it: it["state"] == "running" and _used(it) > 1000 * MiB)
        await self._launch(c)
        await self._see(c, "allocated inside what is left and is now suspended", lambda it: it["state"] == "suspended")
        await self._launch(d)
        await self._see(d, "is suspended at once: the rest is not enough for it", lambda it: it["state"] == "suspended")
        await self._see(b, "has ended and gave its memory back", lambda it: it["state"] == "exited")
        await self._see(c, "resumes with what B gave back", lambda it: it["state"] in ("running", "exited"))
        await self._see(d, "goes on waiting: what is left does not fit it yet", lambda it: it["state"] == "suspended")
        await self._kill(a)
        await self._see(a, "is killed from outside: what it held comes back, too", lambda it: it["state"] == "killed")
        await self._see(c, "has ended, its result checked", lambda it: it["state"] == "exited")
        await self._see(d, "had its turn and ended, its result checked", lambda it: it["state"] == "exited")

    async def _clear(self) -> None:
        names = {part.name for part in self._parts}
        for container in (await self._get("containers/?page_size=1000"))["results"]:
            if container["name"] in names and container["finished_at"] is None:
                answer = await self._client.post(f"containers/{container['id']}/kill/", json={})
                if answer.status_code != httpx.codes.CONFLICT:  # it has ended meanwhile, or is not launched yet
                    answer.raise_for_status()

    async def _launch(self, part: Part) -> None:
        body = {
            "name": part.name,
            "image": self._image,
            "command": ["workload", *part.options],
            "gpu_memory": part.quota * MiB,
        }
        answer = await self._client.post("containers/", json=body)
        if answer.status_code != 201:
            raise NotObserved(f"{part.name} was not launched: {answer.text}")
        self._ids[part.name] = answer.json()["id"]
        await self._say(part, f"launched with a quota of {part.quota / 1024:.2f} GiB")

    async def _kill(self, part: Part) -> None:
        (await self._client.post(f"containers/{self._ids[part.name]}/kill/", json={})).raise_for_status()

    async def _see(self, part: Part, what: str, holds: Callable[[Container], bool]) -> None:
        deadline = time.monotonic() + self._patience
        while True:
            container = await self._get(f"containers/{self._ids[part.name]}/")
            if holds(container):
                break
            over = container["finished_at"] is not None
            if over or time.monotonic() > deadline:
                raise NotObserved(f"{part.name} {what}\n{await self._instead(container)}")
            await asyncio.sleep(0.05)
        await self._say(part, what)

    async def _instead(self, container: Container) -> str:
        """What was there instead, with the end of the program's own output."""
        log = (await self._client.get(f"containers/{container['id']}/logs/")).text
        reason = f" ({container['reason']})" if container["reason"] else ""
        return f"  Instead it is {container['state']}{reason}; the end of its output:\n{log[-500:]}"

    async def _get(self, path: str) -> Any:
        answer = await self._client.get(path)
        answer.raise_for_status()
        return answer.json()

    async def _say(self, part: Part, what: str) -> None:
        self._tell(f"  {time.monotonic() - self._began:5.1f} s  {part.name[-1].upper()}  {what}")
        await asyncio.sleep(self._pause)


def _used(container: Container) -> int:
    return sum(gpu["used"] for gpu in container["gpus"])
