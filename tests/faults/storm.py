"""Ten users do all that users do, for a while, and whatever can die dies at random; then everything is accounted for.

An answer to a user is a promise: an answer is asked for again, with the same key, until it is there. So in the end it
is known of every container what was wanted, and only those that were harmed themselves may have ended otherwise.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
from django.contrib.auth.models import Group, User

from tests.faults.harm import Reaper
from tests.faults.questions import ask
from tests.faults.whole import Whole
from tests.faults.world import GIB, MIB, Wrong, retried
from tests.support.eventually import PATIENCE
from web.models import Container
from web.people import tokens

USERS = 10
# Why a launch that was answered 202 never began, where a trouble has taken what it needs, or dockerd was killed.
NOT_NOW = ("The host does not let", "The host's disk is full", "Docker does not answer", "Docker at ", "GPU ")


@dataclass
class Wish:
    """A container that an answer said is there. `harmed`: one of its own processes was killed from outside.
    `begun`: so the answer said; else only that it is wanted (202).
    """

    name: str
    pk: str = ""
    ends_with: int = 0
    ttl: bool = False
    killed: bool = False
    removed: bool = False
    begun: bool = False
    harmed: bool = False


@dataclass
class Person:
    """One user, who acts at random on what is theirs."""

    world: Whole
    name: str
    key: str
    random: random.Random
    pace: float = 0.5  # seconds between two deeds at most
    wishes: list[Wish] = field(default_factory=list)
    did: Counter[str] = field(default_factory=Counter)

    def act(self, until: float) -> None:
        with httpx.Client(headers={"Authorization": f"Token {self.key}"}, timeout=20) as self._client:
            while time.monotonic() < until:
                mine = [wish for wish in self.wishes if wish.pk and not wish.removed]
                deeds: list[Callable[[], None]] = [self._launch] * (8 if len(mine) < 4 else 2)
                if mine:
                    wish = self.random.choice(mine)
                    for deed, weight in ((self._pause, 2), (self._resume, 4), (self._change, 2), (self._kill, 2),
                                         (self._remove, 1)):  # fmt: skip
                        deeds += [partial(deed, wish)] * weight
                self.random.choice(deeds)()
                time.sleep(self.random.random() * self.pace)

    def settle(self) -> None:
        """Resumes whatever is paused, so that all can come to its end."""
        with httpx.Client(headers={"Authorization": f"Token {self.key}"}, timeout=20) as self._client:
            for wish in self.wishes:
                if wish.pk:
                    self._resume(wish)

    def _launch(self) -> None:
        wish = Wish(f"{self.name}-{len(self.wishes)}")
        size = self.random.choice([64, 128, 512, 1024, 2048, 3072]) * MIB
        hold = round(self.random.uniform(0, 6), 1)
        wish.ends_with = self.random.choice([0, 0, 0, 3])
        wish.ttl = self.random.random() < 0.1
        script = f"{self.world.workload} --bytes {size} --check 1MiB --hold {hold} && exit {wish.ends_with}"
        body: dict[str, Any] = {
            "name": wish.name, "image": self.world.ground.image, "command": ["sh", "-c", f"echo began; {script}"],
            "gpu_memory": size + self.random.choice([128, 256, 1024]) * MIB,
            "remove_when_done": self.random.random() < 0.3, "priority": self.random.randint(-5, 5),
        }  # fmt: skip
        if wish.ttl:
            body["ttl_seconds"] = round(self.random.uniform(1, 5), 1)
        self.wishes.append(wish)
        status, answer = self._ask("POST", "containers/", body, key=wish.name)
        if status in (201, 202):
            wish.begun = status == 201
            wish.pk = answer.get("id") or retried(lambda: str(Container.objects.get(launch_key=wish.name).pk))
        self.did[f"launch {status}"] += 1

    def _pause(self, wish: Wish) -> None:
        self._steer("pause", wish)

    def _resume(self, wish: Wish) -> None:
        self._steer("resume", wish)

    def _kill(self, wish: Wish) -> None:
        wish.killed = True  # also if no answer tells so: it may have come about
        self._steer("kill", wish, {"grace": self.random.choice([0, 1])})

    def _change(self, wish: Wish) -> None:
        body = self.random.choice([{"priority": self.random.randint(-5, 5)},
                                   {"gpu_memory": self.random.choice([1, 2, 3, 4]) * GIB}])  # fmt: skip
        status, _ = self._ask("PATCH", f"containers/{wish.pk}/", body)
        self.did[f"change {status}"] += 1

    def _remove(self, wish: Wish) -> None:
        status, _ = self._ask("DELETE", f"containers/{wish.pk}/")
        wish.removed = status == 200
        self.did[f"remove {status}"] += 1

    def _steer(self, deed: str, wish: Wish, body: dict[str, Any] | None = None) -> None:
        status, _ = self._ask("POST", f"containers/{wish.pk}/{deed}/", body or {})
        self.did[f"{deed} {status}"] += 1

    def _ask(self, method: str, path: str, body: Any = None, key: str = "") -> tuple[int, dict[str, Any]]:
        """Asks until it is answered by somebody who knows. Raises Wrong if nobody does for PATIENCE."""
        headers = {"Idempotency-Key": key} if key else {}
        deadline = time.monotonic() + PATIENCE
        while True:
            said = ""
            try:
                answer = self._client.request(method, f"{self.world.url}/api/v1/{path}", json=body, headers=headers)
                if answer.status_code not in (429, 502, 503):
                    if answer.status_code >= 500:
                        raise Wrong(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
                    return answer.status_code, answer.json() if answer.content else {}
                said = answer.text[:300]
            except httpx.TransportError as error:
                said = repr(error)
            if time.monotonic() > deadline:
                raise Wrong(f"{method} {path} is not answered for {PATIENCE:.0f} s: {said}")
            time.sleep(0.1)


def run(world: Whole, harm: list[str], seconds: float, seed: int) -> dict[str, Any]:
    """What was wrong, and what happened meanwhile."""
    chance = random.Random(seed)
    people = [person(world, f"user{number}", random.Random(chance.random())) for number in range(USERS)]
    reaper = Reaper(world, harm, random.Random(chance.random()))
    until = time.monotonic() + seconds
    found = at_once([partial(each.act, until) for each in people],
                     [partial(reaper.rage, part, until) for part in reaper.parts])  # fmt: skip
    found += accounted_for(world, people, reaper.harmed)
    return {
        "wrong": found,
        "containers": sum(bool(wish.pk) for each in people for wish in each.wishes),
        "killed": dict(reaper.killed),
        "troubles": dict(reaper.troubles),
        "impossible": sorted(reaper.impossible),
        "asked": dict(sorted(sum((each.did for each in people), Counter[str]()).items())),
        "silence": round(world.longest_silence, 1),
    }


def accounted_for(world: Whole, people: list[Person], harmed: set[str]) -> list[str]:
    """Lets all come to its end; what is wrong then."""
    found = at_once([each.settle for each in people])
    wishes = [wish for each in people for wish in each.wishes if wish.pk]
    for wish in wishes:
        wish.harmed = wish.pk in harmed
    try:
        world.until(lambda: not Container.objects.live().exists(), "containers do not come to their end", within=300)
    except Wrong as fault:
        found.append(f"{fault}: {[(c.name, c.state, c.queue_reason) for c in Container.objects.live()]}")
    found += [said for wish in wishes for said in _judge(world, wish)]
    return found + ask(world)


def _judge(world: Whole, wish: Wish) -> Iterator[str]:
    """Did this container become what was wanted of it?"""
    container = Container.objects.get(pk=wish.pk)
    began = world.log(container).count("began")
    if began > 1:
        yield f"{wish.name}: its program was started {began} times"
    if container.state == "exited" or container.exit_code == wish.ends_with:
        return
    if wish.harmed or wish.killed or (wish.ttl and "Its time" in container.reason):
        return
    if container.exit_code == 2:
        return  # its quota was lowered below what it then asked for
    if not wish.begun and began == 0 and container.reason.startswith(NOT_NOW):
        return  # what its user reads is true: it never began, and why
    yield (
        f"{wish.name} was to end with {wish.ends_with}; it is {container.state}, {container.exit_code}: "
        f"{container.reason} {world.log(container)[-200:]}"
    )


def person(world: Whole, name: str, chance: random.Random, pace: float = 0.5) -> Person:
    user, _ = User.objects.get_or_create(username=name)
    user.groups.add(Group.objects.get_or_create(name="user")[0])
    return Person(world, name, tokens.make(user)[1], chance, pace)


def at_once(*parts: Sequence[Callable[[], None]]) -> list[str]:
    """Does all of this at once; what failed."""
    found: list[str] = []

    def guarded(part: Callable[[], None]) -> None:
        try:
            part()
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=guarded, args=(part,)) for some in parts for part in some]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
