"""Lists over REST: never older than what was committed before the question, and to each reader what is theirs to see.

On PostgreSQL, too: tests/web/test_postgres.py.
"""

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tests.support.appliance import until
from tests.support.machine import GIB, elsewhere, make_container, make_gpu
from tests.support.people import client_for, make_user
from web.api.answers import ContainerAnswer, WaitingAnswer
from web.api.protocol.lists import LARGEST, to_json
from web.http import response_cache
from web.http.response_cache import cached
from web.models import Claim, Container, Gpu
from web.people.roles import Role, steered_by

pytestmark = pytest.mark.django_db(transaction=True)

LISTS = ("gpus/", "queue/", "containers/", "containers/?live=true&page_size=5")


@pytest.fixture(autouse=True)
def _entries() -> Iterator[None]:
    yield
    response_cache._entries.clear()


@pytest.fixture
def many(ada, gpu) -> list[Container]:
    """In all states, on two GPUs or one or none, one of them somebody else's."""
    now = timezone.now()
    other = make_gpu(gpu.node, index=1, power=1.5, utilisation=None, compute="shared", compute_why="It is asked for.")
    waits = {"suspended_since": now, "queue_bytes": GIB, "queue_reason": "It waits."}
    made = [make_container(ada, f"c{n}", (gpu, other)[n % 2], queue_position=3 - n, **waits) for n in range(3)]
    made[0].claims.create(gpu=other, quota=1)
    fields: list[dict[str, Any]] = [
        {"started_at": None, "engine": "swarm"}, {"paused_at": now}, {"swapped_at": now, "swapped": 5},
        {"finished_at": now, "exit_code": 0, "cpus": 2}, {"finished_at": now, "exit_code": -9, "reason": "Killed."},
        {"finished_at": now, "kill_requested_at": now, "run_of": made[0]}, {"compute_weight": 5, "compute_limit": 50},
        {"command": ["a", "é\u2028"], "environment": {"Z": "1", "A": "2"}, "ports": [{"host": 1}], "ttl_seconds": 5,
         "created_at": now - timedelta(days=1), "memory": GIB, "gpu_memory": None, "node": gpu.node},
    ]  # fmt: skip
    made += [make_container(ada, f"d{n}", other if n else None, **each) for n, each in enumerate(fields)]
    return [*made, make_container(make_user("bob"), "bobs", gpu, command=["hidden"], environment={"KEY": "x"})]


def results(client: Any, path: str = "containers/") -> list[dict[str, Any]]:
    answer = client.get(f"/api/v1/{path}")
    assert answer.status_code == 200, answer.content
    found: list[dict[str, Any]] = answer.json()["results"]
    return found


def names(client: Any) -> list[str]:
    return [row["name"] for row in results(client)]


def rename(name: str) -> None:
    Container.objects.filter(finished_at=None).update(name=name)


def by_the_framework(user: Any) -> dict[str, list[dict[str, Any]]]:
    """Each list as the serializers show its records, one by one."""
    context = {"shows": steered_by(user)}
    found = Container.objects.whole().listed().order_by("-created_at", "pk")
    gpus = client_for(user)
    made = {
        "queue/": [WaitingAnswer(row).data for row in Container.objects.queued().whole()],
        "containers/": [ContainerAnswer(row, context=context).data for row in found],
        "gpus/": [gpus.get(f"/api/v1/gpus/{row.uuid}/").json() for row in Gpu.objects.all()],
    }
    return {path: json.loads(to_json(rows)) for path, rows in made.items()}


def test_the_lists_show_what_the_serializers_show_whatever_changes(ada, many, gpu):
    client = client_for(ada)
    first, second, *_ = many
    for change in (
        lambda: None,
        lambda: Claim.objects.filter(container=first).update(used=7, granted=9),
        lambda: Container.objects.filter(pk=second.pk).update(suspended_since=None, queue_position=None),
        lambda: Claim.objects.filter(container=first).first().delete(),
        lambda: Gpu.objects.filter(pk=gpu.pk).update(uuid="GPU-other", temperature=-3),
        lambda: type(ada).objects.filter(username="bob").update(username="robert"),
        lambda: Container.objects.filter(name="d1").update(removed_at=timezone.now()),
        lambda: (Claim.objects.all().delete(), Container.objects.all().delete(), Gpu.objects.all().delete()),
    ):
        elsewhere(change)
        for path, expected in by_the_framework(ada).items():
            assert results(client, path) == expected, path


def test_a_list_is_made_once_for_all_readers_as_long_as_nobody_writes_unless_it_is_a_large_one(ada, many):
    clients = [client_for(ada), client_for(make_user("eve"))]
    for client in clients:
        client.get("/api/v1/nodes/")  # notes that the token is in use, which is a change, too
    for path, reads in (*((path, False) for path in LISTS), (f"containers/?page_size={LARGEST + 1}", True)):
        results(clients[0], path)
        with CaptureQueriesContext(connection) as asked:
            results(clients[1], path)
        assert any("COUNT(*)" in query["sql"] for query in asked) == reads, path


@pytest.mark.parametrize("where", [elsewhere, lambda work: work()])
def test_a_list_shows_what_was_written_just_before_the_question(ada, gpu, where):
    make_container(ada, "a", gpu)
    client = client_for(ada)
    for turn in range(20):
        where(lambda turn=turn: rename(f"turn-{turn}"))
        assert names(client) == names(client) == [f"turn-{turn}"]


def test_a_transaction_sees_what_it_has_written_itself(ada, gpu):
    make_container(ada, "a", gpu)
    client = client_for(ada)
    before = names(client)
    with transaction.atomic():
        rename("not yet")
        assert names(client) == ["not yet"]
        transaction.set_rollback(True)
    assert names(client) == before


def test_each_reader_sees_what_is_theirs_whoever_asked_first(ada, many):
    readers = {"ada": ada, "bob": many[-1].owner, "olga": make_user("olga", Role.OPERATOR),
               "vera": make_user("vera", Role.VIEWER)}  # fmt: skip
    hers = {row.name for row in many[:-1]}
    sees = {"ada": hers, "bob": {"bobs"}, "olga": {*hers, "bobs"}, "vera": set()}
    clients = {name: client_for(user) for name, user in readers.items()}
    for turn in range(2):
        for name, client in clients.items():
            shown = results(client)
            for field in ("command", "env"):
                assert {row["name"] for row in shown if row[field] is not None} == sees[name]
        (row,) = results(clients["bob"], "containers/?name=bobs")
        assert (row["command"], row["env"]) == (["hidden"], ["KEY"])
        elsewhere(lambda turn=turn: Container.objects.filter(name="c0").update(priority=turn + 1))


def test_rights_are_looked_up_for_each_request(ada, many):
    vera = make_user("vera", Role.VIEWER)
    client, operators = client_for(vera), Group.objects.get_or_create(name="operator")[0]
    for change, sees in ((operators.user_set.add, len(many)), (operators.user_set.remove, 0)):
        results(client)
        elsewhere(lambda change=change: change(vera))
        assert sum(row["command"] is not None for row in results(client)) == sees
    elsewhere(lambda: type(vera).objects.filter(pk=vera.pk).update(is_active=False))
    assert client.get("/api/v1/containers/").status_code == 401


def test_what_changed_while_it_was_read_is_read_again(ada, gpu):
    make_container(ada, "older", gpu)
    calls: list[str] = []

    def read() -> str:
        found = Container.objects.get().name
        calls.append(found)
        if len(calls) == 1:
            elsewhere(lambda: rename("newer"))
        return found

    assert [cached("slow", read) for _ in range(3)] == ["older", "newer", "newer"]
    assert calls == ["older", "newer"]


def test_readers_who_ask_while_another_reads_share_the_next_read(ada, gpu):
    """What is being read may be older than their question: somebody has written in between."""
    make_container(ada, "older", gpu)
    calls: list[str] = []
    reading, go_on = threading.Event(), threading.Event()
    found: list[str] = []
    asked: list[object] = []

    def read() -> str:
        name = Container.objects.get().name
        calls.append(name)
        reading.set()
        assert go_on.wait(60)
        return name

    def ask() -> None:
        found.append(cached("together", read))
        connections.close_all()

    threads = [threading.Thread(target=ask) for _ in range(9)]
    threads[0].start()
    assert reading.wait(60)
    elsewhere(lambda: rename("newer"))
    lock = response_cache._entries["together"].lock

    class Counted:
        def __enter__(self) -> None:
            asked.append(None)
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    response_cache._entries["together"].lock = Counted()  # type: ignore[assignment]
    for thread in threads[1:]:
        thread.start()
    until(lambda: len(asked) == 8)
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == ["newer"] * 8 + ["older"]
    assert calls == ["older", "newer"]


def test_a_read_that_fails_leaves_the_next_to_read(db):
    def fail() -> None:
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            cached("failing", fail)
    assert cached("failing", lambda: 3) == 3


def test_so_many_answers_are_kept(db, monkeypatch):
    monkeypatch.setattr(response_cache, "ENTRIES", 2)
    for key in (1, 2, 1, 3):
        cached(key, lambda: "made")
    assert list(response_cache._entries) == [1, 3]


def test_what_is_too_large_to_be_kept_is_made_for_each_reader(db):
    made: list[int] = []

    def make() -> int:
        made.append(1)
        return len(made)

    assert [cached("large", make, lambda value: False) for _ in range(3)] == [1, 2, 3]


def test_those_who_wait_for_a_read_that_fails_fail_with_it(db, monkeypatch):
    going, reads, failed, asked = threading.Event(), [], [], []
    entry_of = response_cache._entry

    def counted(key: str) -> response_cache.Entry:
        asked.append(key)
        return entry_of(key)

    monkeypatch.setattr(response_cache, "_entry", counted)

    def broken() -> int:
        reads.append(1)
        assert going.wait(60)
        raise ZeroDivisionError

    def ask() -> None:
        try:
            cached("failing for all", broken)
        except ZeroDivisionError as error:
            failed.append(error)
        finally:
            connection.close()

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for asker in askers:
        asker.start()
    until(lambda: len(asked) == 4 and reads)
    going.set()
    for asker in askers:
        asker.join()
    assert len(failed) == 4
    assert len(reads) <= 2, "one that read, and one for those who came while it did"
