"""REST on top of a real scheduler, real processes and the simulated card: answers say what happened, records agree."""

import json
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.test import AsyncClient
from django.utils import timezone

from tests.support.events import recomputed
from tests.support.eventually import PATIENCE, eventually
from tests.support.host import BUILD, GIB, Host, a_host, query
from tests.support.people import make_user
from web import audit
from web.history import reports
from web.models import Allowance, AuditEntry, Command, Container, State
from web.people import tokens
from web.people.allowances import quota_held
from web.people.roles import Role
from web.services import issuing, steering

WORKLOAD = str(BUILD / "workload")


class Rest:
    """A client for one person against the application itself; `await rest.post(...)` → (status, body)."""

    def __init__(self, key: str) -> None:
        self._headers = {"Authorization": f"Token {key}"}

    async def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        answer = await AsyncClient().generic(
            method, f"/api/v1/{path}", json.dumps(body) if body is not None else "", "application/json",
            headers=self._headers,
        )  # fmt: skip
        return answer.status_code, json.loads(answer.content or b"null")

    async def launch(self, name: str, *options: str, **fields: Any) -> dict[str, Any]:
        asked = {"image": "local", "name": name, "command": [WORKLOAD, *options], "gpu_memory": "1GiB", **fields}
        status, body = await self("POST", "containers/", asked)
        assert status == 201, body
        return body


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the outcome may take longer than a person is left waiting; each answer here tells it."""
    monkeypatch.setattr(issuing, "ANSWER_WITHIN", PATIENCE)


@pytest.fixture
async def host(transactional_db, settings, tmp_path_factory) -> AsyncIterator[Host]:
    async with a_host(settings, tmp_path_factory.mktemp("host")) as host:
        yield host


@pytest.fixture
async def rest(host) -> Rest:
    return Rest(await query(lambda: tokens.make(make_user("olga", Role.ADMIN))[1]))


async def test_an_outcome_is_reported_and_not_found_by_looking(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuing, "LOOK_AGAIN", 3600.0)
    monkeypatch.setattr(issuing, "ANSWER_WITHIN", 3600.0)
    body = await rest.launch("a", "--hold", "3600")
    command = await query(Command.objects.get, kind=Command.Kind.LAUNCH)
    assert command.created_at <= command.taken_at <= command.done_at
    assert (await rest("POST", f"containers/{body['id']}/kill/"))[0] == 200


async def test_a_container_is_launched_steered_and_accounted_for(host: Host, rest: Rest) -> None:
    begun = timezone.now() - timedelta(seconds=1)
    body = await rest.launch("a", "--bytes", "256MiB", "--hold", "3600")
    assert body["state"] == "running"
    assert [gpu["quota"] for gpu in body["gpus"]] == [GIB]
    container = await query(Container.objects.get, pk=body["id"])
    await host.says(container, "holding")

    path = f"containers/{body['id']}/"
    status, paused = await rest("POST", f"{path}pause/", {"note": "lunch"})
    assert (status, paused["state"]) == (200, State.PAUSED), paused
    status, resumed = await rest("POST", f"{path}resume/")
    assert (status, resumed["state"]) == (200, State.RUNNING), resumed
    status, changed = await rest("PATCH", path, {"gpu_memory": "2GiB", "priority": 5})
    assert (status, changed["gpus"][0]["quota"], changed["priority"]) == (200, 2 * GIB, 5), changed
    status, refused = await rest("DELETE", path)
    assert (status, refused["error"]["code"]) == (409, "not_ended")
    status, killed = await rest("POST", f"{path}kill/")
    assert (status, killed["state"]) == (200, State.KILLED), killed
    await host.returned(container)
    assert (await rest("DELETE", path))[0] == 200
    assert (await rest("GET", "containers/"))[1]["count"] == 0
    assert (await rest("GET", path))[1]["state"] == State.KILLED  # its history stays

    await host.up.store.flush()
    await query(_records_agree, begun)
    actions = await query(lambda: list(AuditEntry.objects.filter(subject=body["id"]).values_list("action", flat=True)))
    assert actions == ["launch", "pause", "resume", "change", "kill", "remove"]


def _records_agree(begun: Any) -> None:
    """The chain holds, and the report says what a simple-minded look at the raw events says."""
    assert audit.verify()[1] == []
    end = timezone.now() + timedelta(seconds=1)
    total = reports.report(begun, end).total
    expected = recomputed(begun, end)
    assert {figure: getattr(total, figure) for figure in expected} == expected
    assert expected["byte_microseconds"] > 0


async def _first_in_queue(rest: Rest) -> dict[str, Any]:
    """The first row once its reason is there: the state is written at once, the queue a moment later."""

    async def first() -> dict[str, Any] | None:
        status, queue = await rest("GET", "queue/")
        assert status == 200
        return next((row for row in queue["results"][:1] if row["reason"]), None)

    return await eventually(first)


async def test_a_suspended_container_waits_in_the_queue_and_the_reason_is_shown(host: Host, rest: Rest) -> None:
    holder = await rest.launch("holder", "--bytes", "3GiB", "--check", "1MiB", "--hold", "3600", gpu_memory="4GiB")
    await host.says(await query(Container.objects.get, pk=holder["id"]), "holding")
    waiter = await rest.launch("waiter", "--bytes", "3GiB", "--check", "1MiB", gpu_memory="4GiB")
    container = await query(Container.objects.get, pk=waiter["id"])
    await host.until(container, "suspended")
    row = await _first_in_queue(rest)
    assert (row["name"], row["position"], row["since"] is not None) == ("waiter", 1, True)
    assert row["bytes"] > 0
    assert row["reason"].endswith("Next when holder ends.")
    assert (await rest("PUT", "queue/", {"containers": [waiter["id"]]}))[0] == 200
    assert (await rest("POST", f"containers/{holder['id']}/kill/"))[0] == 200
    await host.until(container, "exited")
    await host.returned(container)
    await query(_records_agree, container.created_at - timedelta(seconds=10))


async def test_a_forecast_tells_whether_it_fits_behind_whom_and_by_when(host: Host, rest: Rest) -> None:
    status, empty = await rest("GET", "forecast/?gpu_memory=5000MiB")
    assert (status, empty["fits"], empty["behind"], empty["earliest"]) == (200, True, [], 0.0), empty
    holder = await rest.launch("holder", "--bytes", "3GiB", "--check", "1MiB", "--hold", "3600", gpu_memory="4GiB")
    await host.says(await query(Container.objects.get, pk=holder["id"]), "holding")
    status, unknown = await rest("GET", "forecast/?gpu_memory=3GiB")
    assert (status, unknown["fits"], unknown["behind"], unknown["earliest"]) == (200, False, [holder["id"]], None)
    assert (await rest("GET", "forecast/?gpu_memory=64MiB"))[1]["fits"] is True
    status, never = await rest("GET", "forecast/?gpu_memory=6GiB")
    assert (status, never["error"]["code"], never["error"]["field"]) == (400, "over_capacity", "gpu_memory")


async def test_a_quota_from_the_images_label_is_held_to_the_owners_allowance(
    host: Host, rest: Rest, monkeypatch
) -> None:
    await query(lambda: Allowance.objects.create(user=User.objects.get(), gpu_memory=2 * GIB))
    labels: dict[str, str] = {}

    async def image_labels(image: str, progress: object = None) -> dict[str, str]:
        return labels

    monkeypatch.setattr(host.up.engine, "image_labels", image_labels)
    labels["com.nvidia.memory.limit"] = "3GiB"
    body = {"image": "local", "command": [WORKLOAD, "--bytes", "1MiB"]}
    status, refused = await rest("POST", "containers/", body)
    assert (status, refused["error"]["code"]) == (403, "over_allowance"), refused
    labels["com.nvidia.memory.limit"] = "512m"
    status, launched = await rest("POST", "containers/", body)
    assert (status, launched["gpus"][0]["quota"]) == (201, GIB // 2), launched


async def test_of_two_that_pass_an_allowance_together_one_is_refused(host: Host, rest: Rest, monkeypatch) -> None:
    """Each is fine when it is asked for; what counts is what the owner holds when it is done."""

    def both(first: Callable[[], Command], second: Callable[[], Command]) -> list[str]:
        with transaction.atomic():  # the scheduler sees neither before both have been asked for
            asked = [first(), second()]
        return sorted(f"{command.outcome} {command.code}".strip() for command in map(steering.wait_for, asked))

    async def image_labels(image: str, progress: object = None) -> dict[str, str]:
        return {"com.nvidia.memory.limit": "3GiB"}

    monkeypatch.setattr(host.up.engine, "image_labels", image_labels)
    user = await query(User.objects.get)
    await query(lambda: Allowance.objects.create(user=user, gpu_memory=4 * GIB))
    outcomes = ["done", "refused over_allowance"]
    hold = [WORKLOAD, "--bytes", "1MiB", "--hold", "3600"]

    def launch() -> Command:
        return steering.launch(user, {"image": "local", "command": hold})

    assert await query(both, launch, launch) == outcomes
    [labelled] = await query(lambda: list(Container.objects.live()))
    assert await query(quota_held, user) == 3 * GIB

    await query(lambda: steering.wait_for(steering.change(user, labelled, gpu_memory="1GiB")))
    status, other = await rest("POST", "containers/", {"image": "local", "command": hold, "gpu_memory": "1GiB"})
    assert status == 201, other
    one, two = await query(lambda: list(Container.objects.live()))
    raised = [partial(steering.change, user, container, gpu_memory="3GiB") for container in (one, two)]
    assert await query(both, *raised) == outcomes
    assert await query(quota_held, user) == 4 * GIB
    assert sorted(next(iter(live.quota.values())) for live in host.up.broker.live_containers.values()) == [GIB, 3 * GIB]
