"""A node that somebody has stolen is expelled whatever it holds, and its connections are gone."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import psycopg
import pytest

from tests.support.joined import Site, as_node
from tests.support.postgres import BIN

pytestmark = [
    pytest.mark.production,
    pytest.mark.skipif(BIN is None, reason="needs the distribution's PostgreSQL"),
]

# Each in a connection of its own, in a transaction that stays open.
HELD = {
    "its node's row": "SELECT 1 FROM web_node WHERE name = 'stolen' FOR NO KEY UPDATE",
    "the end of the chain": "SELECT 1 FROM web_chain FOR NO KEY UPDATE",
    "the lock of who makes the rules": "SELECT pg_advisory_lock(hashtext('gpushare rules'))",
    "its own role": "ALTER ROLE CURRENT_USER PASSWORD 'another'",
    "a table that it reads": "SELECT count(*) FROM web_container",
    "its launches' owner": "SELECT gpushare_hold(1)",
    "a temporary table": "CREATE TEMPORARY TABLE x (a integer)",
}


def connections(site: Site, name: str) -> int:
    """That a node's role has, by its number, as the role itself may be gone."""
    found = site.sql(
        "SELECT count(*) FROM pg_stat_activity a JOIN web_node n ON a.usename = 'appliance_node_' || n.id "
        "WHERE n.name = %s",
        name,
    )
    return int(found[0][0])


def listed(site: Site, name: str) -> bool:
    return site.sql("SELECT removed_at IS NULL FROM web_node WHERE name = %s", name) == [(True,)]


def may_sign_in(site: Site, name: str) -> bool:
    asked = (
        "SELECT rolcanlogin FROM pg_roles r JOIN web_node n ON rolname = 'appliance_node_' || n.id WHERE n.name = %s"
    )
    return site.sql(asked, name) not in ([], [(False,)])


def test_a_node_is_expelled_whatever_it_holds(site: Site) -> None:
    settings = site.joined("stolen")
    with ExitStack() as held:
        holders = [held.enter_context(as_node(settings)) for _ in HELD]
        for holder, statement in zip(holders, HELD.values(), strict=True):
            holder.execute(statement)
        site.main.manage("node", "remove", "stolen", "--force")
        assert not listed(site, "stolen")
        assert connections(site, "stolen") == 0
        for holder in holders:
            with pytest.raises(psycopg.OperationalError):
                holder.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError):
        as_node(settings)


@contextmanager
def coming_again(settings: dict[str, str]) -> Iterator[None]:
    """Somebody with the node's password, who comes again whenever a connection ends, and changes that password."""
    over = threading.Event()

    def come() -> None:
        while not over.is_set():
            with suppress(psycopg.Error), as_node(settings) as database:
                password = settings["DATABASE_URL"].partition("@")[0].rpartition(":")[2]
                database.execute(f"ALTER ROLE CURRENT_USER PASSWORD '{password}'")
                database.commit()
                database.execute("SELECT FROM web_node WHERE name = 'persistent' FOR NO KEY UPDATE")
                over.wait()

    threads = [threading.Thread(target=come) for _ in range(4)]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        over.set()
        for each in threads:
            each.join(60)


def test_a_node_that_connects_again_and_again_is_expelled(site: Site) -> None:
    settings = site.joined("persistent")
    with coming_again(settings):
        site.main.manage("node", "remove", "persistent", "--force")
        assert not listed(site, "persistent")
        assert connections(site, "persistent") == 0
        assert not may_sign_in(site, "persistent")


def test_what_a_node_has_made_does_not_keep_its_role(site: Site) -> None:
    settings = site.joined("maker")
    with as_node(settings) as database:
        database.execute("SELECT lo_create(0)")
    site.main.manage("node", "remove", "maker", "--force")
    assert site.sql("SELECT 1 FROM pg_roles r JOIN web_node n ON rolname = 'appliance_node_' || n.id "
                    "WHERE n.name = 'maker'") == []  # fmt: skip


def test_a_refused_removal_leaves_the_node_its_rights(site: Site) -> None:
    settings = site.joined("full")
    site.main.manage("shell", "-c", CONTAINER)
    with pytest.raises(subprocess.CalledProcessError) as refused:
        site.main.manage("node", "remove", "full", stderr=subprocess.PIPE)
    assert "holds 1 container" in refused.value.stderr
    as_node(settings).close()


CONTAINER = """
from django.contrib.auth.models import User
from web.models import Container, Node
Container.objects.create(name="in-full", owner=User.objects.get(), image="local", node=Node.objects.get(name="full"))
"""


def test_a_connection_that_cannot_be_ended_is_said_and_a_second_try_goes_on(site: Site) -> None:
    settings = site.joined("stuck")
    with as_node(settings) as database:
        process = database.info.backend_pid
        os.kill(process, signal.SIGSTOP)
        try:
            with pytest.raises(subprocess.CalledProcessError) as refused:
                site.main.manage("node", "remove", "stuck", "--force", stderr=subprocess.PIPE)
            assert "one of its connections does not end" in refused.value.stderr
            assert listed(site, "stuck")
            assert not may_sign_in(site, "stuck")
            assert site.sql("SELECT 1 FROM web_auditentry WHERE action = 'node-removed' AND subject = 'stuck'") == []
        finally:
            os.kill(process, signal.SIGCONT)
        site.main.manage("node", "remove", "stuck", "--force")
    assert not listed(site, "stuck")


def test_a_lock_that_somebody_else_holds_is_said(site: Site) -> None:
    """The node itself is cut off: a second try needs the lock alone."""
    site.joined("waiting")
    with psycopg.connect(site.url) as somebody:
        somebody.execute("SELECT 1 FROM web_chain FOR NO KEY UPDATE")
        with pytest.raises(subprocess.CalledProcessError) as refused:
            site.main.manage("node", "remove", "waiting", "--force", stderr=subprocess.PIPE)
        assert "another connection to the database holds" in refused.value.stderr
        assert listed(site, "waiting")
    site.main.manage("node", "remove", "waiting", "--force")
    assert not listed(site, "waiting")


JOINS_MEANWHILE = """
from django.conf import settings
from web.errors import Problem
from web.schema import last_change
from web.services import nodes
from web.services.joining import invitations, roles

cut = roles.cut
token = invitations.invite("root", "quick")


def then_join(node):
    cut(node)
    asked = {"token": token, "node": "quick", "release": settings.GPUSHARE_VERSION, "schema": last_change()}
    print(invitations.join(asked, "127.0.0.1")["DATABASE_URL"])


roles.cut = then_join
try:
    nodes.expel("root", "quick", force=True)
    print("removed")
except Problem as problem:
    print(problem.code)
"""


def test_a_host_that_joins_while_its_node_is_removed_keeps_no_role_without_a_node(site: Site) -> None:
    site.joined("quick")
    url, code = site.main.manage("shell", "-c", JOINS_MEANWHILE).splitlines()[-2:]
    assert code == "node_alive"
    assert listed(site, "quick")
    as_node({"DATABASE_URL": url}).close()
    site.main.manage("node", "remove", "quick", "--force")
    assert not listed(site, "quick")
    assert not may_sign_in(site, "quick")


def test_a_role_that_the_nodes_row_does_not_name_is_taken_away(site: Site) -> None:
    """As after a backup from before it joined was restored: PostgreSQL keeps its role."""
    site.joined("nameless")
    site.sql("UPDATE web_node SET role = '', removed_at = now() WHERE name = 'nameless'")
    site.main.manage("node", "remove", "nameless", "--force")
    assert not listed(site, "nameless")
    assert not may_sign_in(site, "nameless")
