"""What Docker's Swarm does by itself, that our engine rests on: shown on real engines, not believed.

A job with a reservation waits until there is room; a node that falls takes what ran on it along, and comes back as the
node that it was; and no reservation passes what a card was declared to have, whoever is the leader at that moment.
"""

import contextlib
import secrets
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import docker
import docker.errors
import pytest

from tests.engines.conftest import collected, leaks_sockets
from tests.support.dockerd import IMAGE
from tests.support.eventually import until
from tests.support.swarm_lab import AWAY, SETTLES, Lab, Member
from tests.swarm.conftest import FIVE, THREE, TWO

# Docker's alone, and so it changes with Docker only; what ours makes of it: test_launches.py.
pytestmark = [pytest.mark.long, pytest.mark.docker, leaks_sockets]
__all__ = ["collected"]
KIND = "gpu0_mib"
NANOSECONDS = 1_000_000_000
HOLDS = (
    "assigned",
    "accepted",
    "preparing",
    "ready",
    "starting",
    "running",
)  # states in which a task has what it reserved
BEFORE_THE_END = ("new", "allocated", "pending", *HOLDS)


def submit(by: Member, mib: int, *command: str, kind: str = KIND) -> str:
    """A job of one task that reserves so much of a card. Returns the service's id."""
    task = docker.types.TaskTemplate(
        # The first process of a container hears no SIGTERM unless it asks for it: Docker would give it ten seconds.
        docker.types.ContainerSpec(IMAGE, command=list(command), stop_grace_period=NANOSECONDS // 10),
        resources=docker.types.Resources(generic_resources={kind: mib}),
        restart_policy=docker.types.RestartPolicy("none"),
    )
    mode = docker.types.ServiceMode("replicated-job", replicas=1)
    return str(by.api.create_service(task, name=f"job-{secrets.token_hex(4)}", mode=mode)["ID"])


def take_back(by: Member, service: str) -> None:
    """Has its task ended, or not begun: as a job of no task at all. Only when it has none may it be removed."""
    found = by.api.inspect_service(service)
    spec = {**found["Spec"], "Mode": {"ReplicatedJob": {"MaxConcurrent": 0, "TotalCompletions": 0}}}
    url, version = by.api._url("/services/{0}/update", service), {"version": found["Version"]["Index"]}
    by.api._raise_for_status(by.api._post_json(url, data=spec, params=version))
    until(lambda: state_of(by, service) not in BEFORE_THE_END, SETTLES, 0.1)
    by.api.remove_service(service)


def task_of(by: Member, service: str) -> dict[str, Any]:
    """The newest task of this service; empty before it has one."""
    found = [task for task in by.api.tasks() if task["ServiceID"] == service]  # a filter knows no service that is gone
    return dict(max(found, key=lambda task: task["CreatedAt"], default={}))


def state_of(by: Member, service: str) -> str:
    return str(task_of(by, service).get("Status", {}).get("State", ""))


def said_of(by: Member, service: str) -> str:
    return str(task_of(by, service).get("Status", {}).get("Err", ""))


@pytest.fixture(autouse=True)
def nothing_left(swarm: Lab) -> Iterator[None]:
    yield
    manager = until(lambda: next((member for member in swarm.members if swarm.ready(member)), None), SETTLES, 0.1)
    for service in manager.api.services():
        take_back(manager, service["ID"])
    until(lambda: not any(task["Status"]["State"] in BEFORE_THE_END for task in manager.api.tasks()), SETTLES, 0.1)


def test_a_job_that_fits_on_no_node_waits_and_starts_when_room_comes(swarm: Lab) -> None:
    manager = swarm.members[0]
    first = submit(manager, FIVE - 100, "sleep", "600")
    until(lambda: state_of(manager, first) == "running", every=0.1)
    second = submit(manager, FIVE - 100, "sleep", "600")  # fits on that node alone
    until(lambda: "insufficient resources" in said_of(manager, second), every=0.1)
    assert state_of(manager, second) == "pending"
    small = submit(manager, TWO, "true")  # others have room for it: it does not stand behind the large one
    until(lambda: state_of(manager, small) == "complete", every=0.1)
    take_back(manager, first)
    until(lambda: state_of(manager, second) == "running", every=0.1)
    assert task_of(manager, second)["NodeID"] == swarm.members[0].id


def test_removing_a_job_ends_nothing_but_taking_it_back_does(swarm: Lab) -> None:
    """Docker 20.10 forgets the service alone: what runs goes on with its reservation, without anybody to ask."""
    manager = swarm.members[0]
    removed = submit(manager, FIVE, "sleep", "600")
    until(lambda: state_of(manager, removed) == "running", every=0.1)
    waits = submit(manager, FIVE, "sleep", "600")
    manager.api.remove_service(removed)
    after = submit(manager, TWO, "true")
    until(lambda: state_of(manager, after) == "complete", every=0.1)  # the leader has looked at the room since
    assert (state_of(manager, removed), state_of(manager, waits)) == ("running", "pending")
    container = task_of(manager, removed)["Status"]["ContainerStatus"]["ContainerID"]
    manager.api.kill(container)
    until(lambda: state_of(manager, waits) == "running", every=0.1)
    pending = submit(manager, FIVE, "true")
    until(lambda: state_of(manager, pending) == "pending", every=0.1)
    take_back(manager, pending)
    take_back(manager, waits)
    until(lambda: not task_of(manager, pending) and not task_of(manager, waits), every=0.1)


def test_a_job_of_a_kind_that_no_node_declares_waits_for_ever(swarm: Lab) -> None:
    """As nothing tells a kind that is misspelt from one that is taken: so we look before we ask."""
    manager = swarm.members[0]
    job = submit(manager, 1, "true", kind="gpu7_mib")
    until(lambda: said_of(manager, job) == "no suitable node (insufficient resources on 3 nodes)", every=0.1)


def test_a_program_is_told_what_it_reserved_and_its_exit_code_reaches_a_manager(swarm: Lab) -> None:
    manager = swarm.members[1]
    job = submit(manager, 16, "sh", "-c", 'exit "$DOCKER_RESOURCE_GPU0_MIB"')
    until(lambda: state_of(manager, job) == "failed", every=0.1)
    assert task_of(manager, job)["Status"]["ContainerStatus"]["ExitCode"] == 16
    assert [task["ServiceID"] for task in manager.api.tasks()].count(job) == 1  # a job that failed is not begun again


def test_an_engine_that_is_killed_takes_its_job_along_and_comes_back_as_the_same_node(swarm: Lab) -> None:
    manager, fallen = swarm.members[0], swarm.members[2]
    known_as = fallen.id
    large = submit(manager, FIVE, "sleep", "600")
    until(lambda: state_of(manager, large) == "running", every=0.1)
    job = submit(manager, THREE, "sleep", "600")
    until(lambda: state_of(manager, job) == "running", every=0.1)
    assert task_of(manager, job)["NodeID"] == known_as
    fallen.kill()
    try:
        until(lambda: swarm.ready(manager) == 2, SETTLES, 0.1)
        waits = submit(manager, THREE, "true")  # the other large card is taken
        until(lambda: "insufficient resources on 2 nodes" in said_of(manager, waits), every=0.1)
    finally:
        fallen.start()
    until(lambda: swarm.ready(manager) == 3, SETTLES, 0.1)
    assert fallen.id == known_as
    until(lambda: state_of(manager, waits) == "complete", SETTLES, 0.1)


def test_a_node_that_left_joins_again_as_another_one(swarm: Lab) -> None:
    manager, leaving = swarm.members[0], swarm.members[1]
    known_as = leaving.id
    manager.api.update_node(known_as, _version(manager, known_as), {"Role": "worker", "Availability": "active"})
    until(lambda: not leaving.api.info()["Swarm"]["ControlAvailable"], SETTLES, 0.1)
    leaving.api.leave_swarm()
    until(lambda: swarm.ready(manager) == 2, SETTLES, 0.1)
    manager.api.remove_node(known_as, force=True)
    swarm.join(leaving, by=manager)
    until(lambda: swarm.ready(manager) == 3 and swarm.ready(leaving) == 3, SETTLES, 0.1)
    assert leaving.id != known_as
    job = submit(leaving, FIVE, "sleep", "600")
    until(lambda: state_of(manager, job) == "running", every=0.1)


def test_no_reservation_passes_a_card_while_managers_change(swarm: Lab) -> None:
    """Two managers give out services at once, and the leader falls twice; what tasks hold is watched all the while."""
    sizes, asked, passed, stop = (700, 1000, 1300, 1700), [], [], threading.Event()
    declared = {member.id: member.declared[KIND] for member in swarm.members}

    def give_out(by: Member) -> None:
        for number in range(20):
            while not stop.is_set():
                try:
                    asked.append(submit(by, sizes[number % len(sizes)], "sleep", "1"))
                    break
                except AWAY:  # it has no leader at the moment
                    stop.wait(0.2)

    def watch() -> None:
        while not stop.wait(0.05):
            for member in swarm.members:
                with contextlib.suppress(*AWAY):
                    held = reserved(member.api.tasks())
                    passed.extend((node, size) for node, size in held.items() if size > declared[node])
                    break

    threads = [threading.Thread(target=give_out, args=[member]) for member in swarm.members[:2]]
    threads.append(threading.Thread(target=watch))
    for thread in threads:
        thread.start()
    try:
        leaders = [_another_leads(swarm) for _ in range(2)]
        for thread in threads[:2]:
            thread.join(90)
        until(lambda: not _under_way(swarm), 120, 0.2)
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert len(asked) == 40
    assert all(before != after for before, after in leaders)
    assert passed == []


def reserved(tasks: list[dict[str, Any]]) -> Counter[str]:
    """What the tasks that are on a node have reserved there, by node."""
    held: Counter[str] = Counter()
    for task in tasks:
        if task["Status"]["State"] in HOLDS and task["DesiredState"] in ("running", "complete"):
            for each in task["Spec"]["Resources"]["Reservations"]["GenericResources"]:
                held[task["NodeID"]] += each["DiscreteResourceSpec"]["Value"]
    return held


def _another_leads(swarm: Lab) -> tuple[str, str]:
    """The leader is killed, another one leads, and it comes back: the names of both."""
    fallen = until(lambda: _leader(swarm), SETTLES, 0.1)
    fallen.kill()
    try:
        after = until(lambda: (now := _leader(swarm)) and now is not fallen and now, SETTLES, 0.1)
    finally:
        fallen.start()
    until(lambda: swarm.ready(after) == len(swarm.members), SETTLES, 0.1)
    return fallen.name, after.name


def _leader(swarm: Lab) -> Member | None:
    try:
        return swarm.leader()
    except StopIteration:
        return None


def _under_way(swarm: Lab) -> int:
    """How many tasks hold something, or will; one, too, while nobody can say."""
    for member in swarm.members:
        with contextlib.suppress(*AWAY):
            return sum(task["Status"]["State"] in BEFORE_THE_END for task in member.api.tasks())
    return 1


def _version(by: Member, node: str) -> int:
    return int(by.api.inspect_node(node)["Version"]["Index"])
