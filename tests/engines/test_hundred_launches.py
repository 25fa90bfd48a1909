"""A lab's bad day: a hundred launches by ten people on a real Docker engine, while everything is restarted at random.

Web and scheduler are processes of their own, as in production. At the end the database, Docker, the card and the
audit log must tell the same story.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import docker
import httpx
import pytest
from django.conf import settings
from django.db import connection
from django.utils import timezone

from scheduler.engines.docker.options import LABEL, LABEL_HOME
from tests.support.dockerd import Dockerd, build_workload
from tests.support.host import SeparateScheduler, query
from tests.support.people import make_user
from tests.support.site import running_site
from web import audit
from web.models import AllocationEvent, AuditEntry, Claim, Command, Container, Gpu
from web.people import tokens

pytestmark = [pytest.mark.long, pytest.mark.docker]

PEOPLE, LAUNCHES_EACH = 10, 10
IMAGE = "gpushare/lab:latest"
MIB = 1 << 20
SIZES = (128 * MIB, 256 * MIB, 512 * MIB, 1024 * MIB, 2048 * MIB)  # on a card of 5 GiB
OVERHEAD = 66 * MIB  # the simulated card's context
UNAVAILABLE = (429, 503)
# The first process of a container takes a signal only if it says so: a dockerd that stops waits 10 s for the others.
OBEDIENT = ("sh", "-c", 'trap "kill $!; exit 143" TERM; "$@" & wait $!', "sh")


@dataclass
class Lab:
    url: str
    home: Path
    dockerd: Dockerd
    scheduler: SeparateScheduler
    outages: list[tuple[datetime, datetime]] = field(default_factory=list)  # of dockerd

    def api(self, token: str) -> httpx.AsyncClient:
        headers = {"Authorization": f"Token {token}"}
        return httpx.AsyncClient(base_url=f"{self.url}/api/v1/", headers=headers, timeout=30)


@pytest.fixture
async def lab(
    transactional_db: None, django_db_blocker: Any, tmp_path: Path, dockerd: Dockerd, docker_api: docker.APIClient
) -> AsyncIterator[Lab]:
    build_workload(dockerd.address, IMAGE)
    environment = {
        "GPUSHARE_HOME": str(tmp_path),
        "GPUSHARE_ENGINE": "docker",
        "GPUSHARE_GPUS": "sim:1x5GiB",
        "GPUSHARE_POLICY": "fair",
        "GPUSHARE_DOCKER_HOST": dockerd.address,
        "GPUSHARE_SECRET_KEY": settings.SECRET_KEY,
        "DATABASE_URL": f"sqlite:///{connection.settings_dict['NAME']}",
    }
    with running_site(tmp_path, django_db_blocker, **environment) as site:
        scheduler = SeparateScheduler(tmp_path, **environment)
        await scheduler.start()
        try:
            yield Lab(site.url, tmp_path, dockerd, scheduler)
        finally:
            await scheduler.stop()
            dockerd.restore()
            for container in docker_api.containers(quiet=True):
                docker_api.kill(container["Id"])
            docker_api.prune_containers()


class Person:
    """Launches containers one after the other, and pauses, resumes and kills some of them."""

    def __init__(self, lab: Lab, name: str, token: str) -> None:
        self._name = name
        self._random = random.Random(name)
        self._api = lab.api(token)

    async def work(self) -> None:
        async with self._api:
            for number in range(LAUNCHES_EACH):
                container = await self._launch(number)
                await asyncio.sleep(self._random.uniform(0, 0.5))
                await self._random.choice([self._leave, self._leave, self._pause_and_resume, self._kill])(container)

    async def _launch(self, number: int) -> str:
        """The id. A launch that is refused because Docker is away is tried again, as a person would."""
        size = self._random.choice(SIZES)
        body = {
            "image": IMAGE,
            "command": [*OBEDIENT, "workload", "--bytes", str(size), "--hold", f"{self._random.uniform(0.1, 1):.1f}",
                        "--check", "1m"],
            "gpu_memory": size + OVERHEAD,
            "remove_when_done": self._random.random() < 0.3,
        }  # fmt: skip
        for attempt in range(100):
            name = f"{self._name}-{number}-{attempt}"
            answer = await self._api.post("containers/", json={**body, "name": name}, headers={"Idempotency-Key": name})
            if answer.status_code in (201, 202):
                row = await query(Container.objects.get, name=name)
                if await self._has_started(row):
                    return str(row.pk)
            else:
                assert answer.status_code in UNAVAILABLE, answer.text
            await asyncio.sleep(0.3)
        raise AssertionError(f"{self._name} could not launch anything")

    async def _has_started(self, row: Container) -> bool:
        while row.started_at is None and row.finished_at is None:
            await asyncio.sleep(0.1)
            row = await query(Container.objects.get, pk=row.pk)
        return row.started_at is not None

    async def _leave(self, _: str) -> None:
        pass

    async def _pause_and_resume(self, container: str) -> None:
        if await self._steer(container, "pause"):
            await asyncio.sleep(self._random.uniform(0, 0.5))
            await self._steer(container, "resume")

    async def _kill(self, container: str) -> None:
        await self._steer(container, "kill")

    async def _steer(self, container: str, action: str) -> bool:
        """Whether it was done; False if the container has ended, which is nobody's fault."""
        for _ in range(100):
            answer = await self._api.post(f"containers/{container}/{action}/", json={})
            if answer.status_code == 200:
                return True
            assert answer.status_code in (202, 409, *UNAVAILABLE), answer.text
            if answer.status_code == 409:
                return False
            await asyncio.sleep(0.3)
        raise AssertionError(f"{action} of {container} came to nothing: {answer.text}")


async def break_things(lab: Lab) -> None:
    """Restarts the scheduler by sudden death, and dockerd by that or properly."""
    dice = random.Random(7)
    for what in ("scheduler", "dockerd", "scheduler", "scheduler", "dockerd", "scheduler"):
        await asyncio.sleep(dice.uniform(1, 3))
        if what == "scheduler":
            await lab.scheduler.kill()
            await asyncio.sleep(dice.uniform(0, 1))
            await lab.scheduler.start()
        else:
            began = timezone.now()
            await asyncio.to_thread(dice.choice([lab.dockerd.stop, lab.dockerd.kill]))
            await asyncio.to_thread(lab.dockerd.start)
            lab.outages.append((began, timezone.now()))


async def settled(within: float) -> None:
    """Waits until every container has ended, every command has its answer and all memory has come back."""
    waiting = {
        "containers": lambda: [f"{row.name} is {row.state}" for row in Container.objects.live()],
        "commands": lambda: [str(row.kind) for row in Command.objects.filter(done_at=None)],
        "memory": lambda: [str(row.container) for row in Claim.objects.exclude(granted=0, used=0)],
        "use of the card": lambda: [f"{gpu.real}, {gpu.foreign}" for gpu in Gpu.objects.exclude(real=0, foreign=0)],
        "leftovers": lambda: [row.name for row in Container.objects.listed().filter(remove_when_done=True)],
    }
    deadline = time.monotonic() + within
    for what, left in waiting.items():
        while found := await query(left):
            assert time.monotonic() < deadline, f"{what} left: {found}"
            await asyncio.sleep(0.2)


async def test_a_hundred_launches_end_in_one_story(lab: Lab, docker_api: docker.APIClient) -> None:
    names = [f"person{number}" for number in range(PEOPLE)]
    keys = [(await query(lambda name=name: tokens.make(make_user(name))[1])) for name in names]
    people = [Person(lab, name, key).work() for name, key in zip(names, keys, strict=True)]
    await asyncio.gather(break_things(lab), *people)
    await settled(within=90)
    await query(the_database_agrees_with_docker, docker_api, lab)
    await query(nobody_passed_a_quota_and_all_came_back)
    await query(everyone_is_in_the_audit_log)


def the_database_agrees_with_docker(api: docker.APIClient, lab: Lab) -> None:
    listed = api.containers(all=True, filters={"label": f"{LABEL_HOME}={lab.home}"})
    in_docker = {each["Labels"][LABEL]: api.inspect_container(each["Id"])["State"] for each in listed}
    assert {state["Status"] for state in in_docker.values()} == {"exited"}
    rows = {str(row.pk): row for row in Container.objects.all()}
    started = {key for key, row in rows.items() if row.started_at is not None}
    assert len(started) == PEOPLE * LAUNCHES_EACH
    kept = {key for key in started if rows[key].removed_at is None}
    assert [_story(rows[key]) for key in kept - in_docker.keys()] == [], "only in the database"
    assert [_story(rows[key]) for key in in_docker.keys() - kept] == [], "only in Docker"
    recorded = {key: rows[key].exit_code for key in in_docker}
    assert recorded == {key: state["ExitCode"] for key, state in in_docker.items()}
    # The program ends well unless somebody ended it: a person, or a dockerd that went away, which may have been about
    # to start it. Who is killed while it waits for memory may end by itself, because its call is rejected first.
    bad = [
        row
        for key in started
        if (row := rows[key]).exit_code not in (0, 137, 143, 255, None)
        and row.kill_requested_at is None
        and not any(_lived_in(row, outage) for outage in lab.outages)
    ]
    assert [f"{_story(row)}\n{(lab.home / 'logs' / f'{row.pk}.log').read_text()}" for row in bad] == []


def _lived_in(row: Container, outage: tuple[datetime, datetime]) -> bool:
    began, over = outage
    return row.started_at is not None and row.started_at <= over and (row.finished_at or over) >= began


def _story(row: Container) -> str:
    commands = ", ".join(f"{each.kind} {each.outcome} {each.code}" for each in row.commands.all())
    times = f"{row.started_at=!s}, {row.removed_at=!s}"
    return f"{row.name}: {row.state} ({row.exit_code}), {times}, {row.reason}; {commands}"


def nobody_passed_a_quota_and_all_came_back() -> None:
    claims = list(Claim.objects.all())
    assert any(claim.peak for claim in claims)
    assert [claim for claim in claims if claim.peak > claim.quota] == []
    assert [claim for claim in claims if claim.used or claim.granted] == []


def everyone_is_in_the_audit_log() -> None:
    _, faults = audit.verify()
    assert faults == []
    launched = set(AuditEntry.objects.filter(action="launch").values_list("subject", flat=True))
    assert launched == {str(row.pk) for row in Container.objects.all()}
    for kind in (AllocationEvent.Kind.STARTED, AllocationEvent.Kind.ENDED):
        recorded = list(AllocationEvent.objects.filter(kind=kind).values_list("container", flat=True))
        expected = set(Container.objects.exclude(started_at=None).values_list("pk", flat=True))
        assert (set(recorded), len(recorded)) == (expected, len(expected)), kind
