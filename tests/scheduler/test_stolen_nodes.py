"""Whoever has a node's role writes what nobody was meant to write: all others go on, and the audit log stays whole."""

import threading
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg.errors import ForeignKeyViolation, InsufficientPrivilege

from tests.support.eventually import PATIENCE, until
from tests.support.joined import Site, as_node, launched
from tests.support.postgres import BIN

pytestmark = [
    pytest.mark.production,
    pytest.mark.skipif(BIN is None, reason="needs the distribution's PostgreSQL"),
]

SEAL = (
    "INSERT INTO web_seal (number, at, rows, node, previous, hash) "
    "SELECT number + 1, now(), 0, 'gpu2', hash, repeat('x', 64) FROM web_chain"
)
EVENT = (
    "INSERT INTO web_allocationevent (at, kind, container_id, bytes, waited, policy, detail, seal_id) "
    "SELECT now(), 'ended', %s, 0, 0, '', '', number + 1 FROM web_chain"
)
UNREADABLE = {
    "a time without an end": "UPDATE web_node SET seen_at = 'infinity'",
    "a time after all years": "UPDATE web_container SET paused_at = '20000-01-01'",
    "a time before all years": "UPDATE web_container SET finished_at = '0044-03-15 BC'",
    "a sign of life of tomorrow": "UPDATE web_node SET seen_at = now() + interval '1 day'",
    "a start of tomorrow": "UPDATE web_node SET started_at = now() + interval '1 day'",
    "no number": "UPDATE web_node SET skew = 'NaN'",
    "a number without an end": "UPDATE web_gpu SET power = 'Infinity'",
    "more than anybody has": "UPDATE web_gpu SET total = 9223372036854775807",
    "a list where a table was": "UPDATE web_node SET moved = '[]'",
    "a table where a list was": "UPDATE web_node SET nearly_full = '{}'",
    "a list of nothing that is known": "UPDATE web_node SET nearly_full = '[{}]'",
    "a number that no float holds": "UPDATE web_node SET figures = '{\"x\": 1e400}'",
    "half of a pair": "UPDATE web_node SET moved = '{\"out\": [1]}'",
    "words for sizes": "UPDATE web_gpu SET strangers = '[{\"pid\": 1, \"bytes\": \"x\", \"user\": \"\", "
                       "\"command\": \"\"}]'",
    "a program for a number": "UPDATE web_gpu SET strangers = '[{\"pid\": \"1; reboot\", \"bytes\": 1, \"user\": \"\", "
                              "\"command\": \"\"}]'",
    "a program that is none": "UPDATE web_claim SET processes = '[7]'",
    "lists in lists": f"UPDATE web_command SET result = '{'[' * 3000}{']' * 3000}'",
    "a state that is none": "UPDATE web_container SET swap = 'x'",
}  # fmt: skip


@pytest.fixture(scope="module")
def mine(site: Site, gpu2: dict[str, str]) -> str:
    """A container on gpu2."""
    return launched(site, "mine")


@pytest.mark.parametrize("what", UNREADABLE)
def test_what_cannot_be_is_refused(site: Site, gpu2: dict[str, str], mine: str, what: str) -> None:
    if "web_command" in UNREADABLE[what]:
        site.main.api("POST", f"containers/{mine}/pause/", {})
        site.main.api("POST", f"containers/{mine}/resume/", {})
    with as_node(gpu2) as database, pytest.raises(InsufficientPrivilege):
        database.execute(UNREADABLE[what])


ASKED = {
    "what somebody holds": "SELECT * FROM gpushare_held(1)",
    "whether a name is taken": "SELECT gpushare_is_named('x')",
    "that an allowance be held": "SELECT gpushare_hold(1)",
    "a launch": "SELECT gpushare_take(gen_random_uuid(), 'x', 'v', 'm')",
    "the runs of a launch": "SELECT * FROM gpushare_runs(gen_random_uuid(), 'x')",
}


@pytest.mark.parametrize("what", ASKED)
def test_somebody_elses_role_of_the_same_postgresql_asks_nothing(site: Site, gpu2: dict[str, str], what: str) -> None:
    with psycopg.connect(site.postgres.url, autocommit=True) as admin:
        admin.execute("DROP ROLE IF EXISTS stranger")
        admin.execute("CREATE ROLE stranger LOGIN")
    url = urlsplit(site.url)
    place = url.netloc.rpartition("@")[2]
    stranger = psycopg.connect(urlunsplit(url._replace(netloc=f"stranger@{place}")))
    with stranger as database, pytest.raises(InsufficientPrivilege):
        database.execute(ASKED[what])


def test_schema_in_which_everybody_makes_things_is_closed_before_a_host_joins(site: Site, gpu2: dict[str, str]) -> None:
    """It is open in databases that began before PostgreSQL 15. An operator there would be called by what sees all."""
    site.sql("GRANT CREATE ON SCHEMA public TO PUBLIC")
    site.joined("careful")
    with as_node(gpu2) as database, pytest.raises(InsufficientPrivilege):
        database.execute("CREATE TABLE x (a integer)")


def test_seal_beyond_the_end_of_the_chain_is_refused(site: Site, gpu2: dict[str, str]) -> None:
    """It would be in the way of everybody's next, for ever."""
    with as_node(gpu2) as database:
        database.execute(SEAL)
        with pytest.raises(InsufficientPrivilege):
            database.commit()
    site.main.api("POST", "tokens/", {"name": "after"})
    assert "whole" in site.main.manage("verify_audit")


def test_event_does_not_slip_under_the_seal_of_somebody_else(site: Site, gpu2: dict[str, str], mine: str) -> None:
    """What points to the next seal keeps the chain for itself: somebody else's seal is one later."""
    with as_node(gpu2) as database:
        database.execute(EVENT, [mine])
        other = threading.Thread(target=site.main.api, args=("POST", "tokens/", {"name": "meanwhile"}))
        other.start()
        other.join(3)
        waited = other.is_alive()
        with pytest.raises(ForeignKeyViolation):
            database.commit()
    other.join(PATIENCE)
    assert waited
    assert "whole" in site.main.manage("verify_audit")


def test_what_is_honest_goes_on(site: Site, gpu2: dict[str, str], mine: str) -> None:
    assert site.main.state(mine) == "running"
    with psycopg.connect(site.url, autocommit=True) as database:
        lives = "SELECT seen_at > now() - interval '5 seconds' FROM web_node WHERE name = 'gpu2'"
        until(lambda: database.execute(lives).fetchall() == [(True,)])
