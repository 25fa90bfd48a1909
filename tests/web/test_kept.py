"""Lists that are made once a change: never older than what was committed before, and to each what is theirs to see."""

from __future__ import annotations

import threading

import pytest
from django.contrib.auth.models import Group
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from tests.support.appliance import until
from tests.support.machine import elsewhere, make_container, make_gpu, make_node
from tests.support.people import client_for, make_user
from web.kept import _kept, kept
from web.models import Container, Token
from web.people import tokens
from web.people.roles import Role

pytestmark = pytest.mark.django_db(transaction=True)


def rename(name: str) -> None:
    Container.objects.update(name=name)


@pytest.fixture
def ada(db):
    return make_user("ada")


@pytest.fixture
def mine(ada):
    return make_container(ada, gpu=make_gpu(make_node()), command=["train", "--secret"], environment={"KEY": "x"})


def names(client) -> list[str]:
    return [row["name"] for row in client.get("/api/v1/containers/").json()["results"]]


def test_a_list_is_made_once_as_long_as_nobody_writes(ada, mine):
    client = client_for(ada)
    client.get("/api/v1/nodes/")  # notes that the token is in use, which is a change, too
    for path in ("gpus/", "queue/", "containers/", "containers/?live=true&page_size=5"):
        first = client.get(f"/api/v1/{path}").json()
        with CaptureQueriesContext(connection) as asked:
            assert client.get(f"/api/v1/{path}").json() == first
        assert not [query for query in asked if "web_" in query["sql"]], path


def test_the_rows_of_a_page_are_read_once_for_all_readers_unless_it_is_a_large_one(ada, mine):
    clients = [client_for(ada), client_for(make_user("eve"))]
    for client in clients:
        client.get("/api/v1/nodes/")  # notes that the token is in use, which is a change, too
    for size, reads in ((50, 0), (1000, 1)):
        path = f"/api/v1/containers/?page_size={size}"
        clients[0].get(path)
        with CaptureQueriesContext(connection) as asked:
            (row,) = clients[1].get(path).json()["results"]
        assert row["command"] is None  # hers is what she may see, all the same
        assert len([query for query in asked if 'FROM "web_container" ' in query["sql"]]) == 2 * reads  # and the count


@pytest.mark.parametrize("where", [elsewhere, lambda work: work()])
def test_a_list_shows_what_was_written_just_before_it_was_asked_for(ada, mine, where):
    client = client_for(ada)
    for turn in range(20):
        where(lambda turn=turn: rename(f"turn-{turn}"))
        assert names(client) == [f"turn-{turn}"]
        assert names(client) == [f"turn-{turn}"]


def test_a_transaction_sees_what_it_has_written_itself(ada, mine):
    client = client_for(ada)
    before = names(client)
    with transaction.atomic():
        rename("not yet")
        assert names(client) == ["not yet"]
        transaction.set_rollback(True)
    assert names(client) == before


def test_each_is_shown_what_is_theirs_to_see_whoever_asked_first(ada, mine):
    client, other, operator = (
        client_for(ada),
        client_for(make_user("bob")),
        client_for(make_user("olga", Role.OPERATOR)),
    )
    shown = {True: (["train", "--secret"], ["KEY"]), False: (None, None)}
    for reader, sees in ((client, True), (other, False), (operator, True), (client, True), (other, False)):
        (row,) = reader.get("/api/v1/containers/").json()["results"]
        assert (row["command"], row["env"]) == shown[sees]


def test_who_is_made_an_operator_sees_more_and_who_is_no_longer_one_sees_less(ada, mine):
    olga = make_user("olga")
    reader, role = client_for(olga), Group.objects.get_or_create(name="operator")[0]
    for change, sees in ((role.user_set.add, True), (role.user_set.remove, False)):
        reader.get("/api/v1/containers/")
        elsewhere(lambda change=change: change(olga))
        (row,) = reader.get("/api/v1/containers/").json()["results"]
        assert (row["command"] is not None) == sees


def test_a_token_that_was_deleted_or_an_account_that_was_switched_off_is_refused_at_once(ada, mine):
    token, key = tokens.make(ada)
    assert tokens.find(key).user == ada
    elsewhere(lambda: type(ada).objects.update(is_active=False))
    with pytest.raises(Exception, match="switched off"):
        tokens.find(key)
    elsewhere(lambda: type(ada).objects.update(is_active=True))
    assert tokens.find(key) == token
    elsewhere(lambda: Token.objects.filter(pk=token.pk).delete())
    with pytest.raises(Exception, match="not known"):
        tokens.find(key)


def test_what_one_request_does_to_its_user_reaches_no_other(ada, mine):
    _, key = tokens.make(ada)
    tokens.find(key).user.username = "changed"
    assert tokens.find(key).user.username == "ada"


def test_what_changed_while_it_was_read_is_read_again(ada, mine):
    calls: list[str] = []

    def read() -> str:
        found = Container.objects.get().name
        calls.append(found)
        if len(calls) == 1:
            elsewhere(lambda: rename("newer"))
        return found

    assert kept("slow", read) == mine.name
    assert kept("slow", read) == "newer"
    assert kept("slow", read) == "newer"
    assert calls == [mine.name, "newer"]


def test_who_asks_while_somebody_reads_waits_for_the_next_read_and_all_of_them_for_the_same(ada, mine):
    """What is being read may be older than their question: somebody has written in between."""
    calls: list[str] = []
    reading, go_on = threading.Event(), threading.Event()

    def read() -> str:
        found = Container.objects.get().name
        calls.append(found)
        reading.set()
        assert go_on.wait(60)
        return found

    def ask() -> None:
        found.append(kept("together", read))
        connections.close_all()

    found: list[str] = []
    threads = [threading.Thread(target=ask) for _ in range(9)]
    threads[0].start()
    assert reading.wait(60)
    elsewhere(lambda: rename("newer"))
    for thread in threads[1:]:
        thread.start()
    watched = _kept(str(connection.settings_dict["NAME"]))
    until(lambda: len(watched._coming) == 1)
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == [mine.name] + ["newer"] * 8
    assert calls[:2] == [mine.name, "newer"]
    assert len(calls) <= 3  # a thread that was late may have come when the second read had begun
    assert not watched._coming
    assert not watched._running


def test_a_reader_that_fails_leaves_the_next_to_read(ada, mine):
    def fail() -> None:
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            kept("failing", fail)
    assert kept("failing", lambda: 3) == 3
