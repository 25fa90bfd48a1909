"""The appliance's own PostgreSQL role makes and deletes nodes' roles, by an admin's functions, and no other ones."""

import subprocess
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege

from tests.support.joined import Site, as_node
from tests.support.postgres import BIN

pytestmark = [
    pytest.mark.production,
    pytest.mark.skipif(BIN is None, reason="needs the distribution's PostgreSQL"),
]

# Each as whoever got into the web side would write it.
REFUSED = {
    "to run programs on the database's host": "GRANT pg_execute_server_program TO appliance",
    "to read its files": "GRANT pg_read_server_files TO appliance",
    "a role": "CREATE ROLE x",
    "a role that may": "CREATE ROLE x IN ROLE pg_execute_server_program",
    "another role's password": "ALTER ROLE bystander PASSWORD 'x'",
    "another role": "GRANT bystander TO appliance",
    "more for itself": "ALTER ROLE appliance CREATEROLE",
    "more for the nodes": "GRANT pg_execute_server_program TO appliance_nodes",
    "a node's role with more": "GRANT pg_execute_server_program TO appliance_node_1",
    "other functions in the admin's place": "CREATE FUNCTION gpushare_admin.x() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "other words in the admin's functions": "CREATE OR REPLACE FUNCTION gpushare_admin.gone(node bigint, milliseconds "
                                            "integer) RETURNS boolean LANGUAGE sql AS 'SELECT true'",
    "none of those functions": "DROP SCHEMA gpushare_admin CASCADE",
}  # fmt: skip


@pytest.fixture(scope="module")
def made(site: Site) -> Iterator[None]:
    with psycopg.connect(site.postgres.url, autocommit=True) as admin:
        admin.execute("CREATE ROLE bystander LOGIN")
        admin.execute("CREATE ROLE appliance_node_1 LOGIN")
        yield
        admin.execute("DROP ROLE bystander")
        admin.execute("DROP ROLE appliance_node_1")


@pytest.mark.parametrize("what", REFUSED)
def test_the_appliances_role_is_refused(site: Site, made: None, what: str) -> None:
    with psycopg.connect(site.url) as database, pytest.raises(InsufficientPrivilege):
        database.execute(REFUSED[what])


def test_a_password_is_a_password(site: Site) -> None:
    """However it is quoted."""
    with psycopg.connect(site.url) as database:
        words = "x' SUPERUSER PASSWORD 'y"
        assert database.execute("SELECT gpushare_admin.let_in(77, %s)", [words]).fetchone() == ("appliance_node_77",)
        rights = "SELECT rolsuper, rolcreaterole, rolconnlimit FROM pg_roles WHERE rolname = 'appliance_node_77'"
        assert database.execute(rights).fetchone() == (False, False, 8)


def test_a_role_of_a_nodes_name_that_an_admin_gave_more_is_no_nodes(site: Site) -> None:
    """Else its password would be the appliance's to choose."""
    with psycopg.connect(site.postgres.url, autocommit=True) as admin:
        admin.execute("CREATE ROLE appliance_node_88 LOGIN IN ROLE pg_execute_server_program")
        with psycopg.connect(site.url) as database, pytest.raises(InsufficientPrivilege, match="more rights"):
            database.execute("SELECT gpushare_admin.let_in(88, 'x')")
        admin.execute("DROP ROLE appliance_node_88")


def test_a_nodes_role_calls_none_of_them(site: Site) -> None:
    with as_node(site.joined("curious")) as database, pytest.raises(InsufficientPrivilege):
        database.execute("SELECT gpushare_admin.let_in(1, 'x')")


def test_set_up_takes_from_the_role_that_it_may_make_roles(site: Site) -> None:
    with psycopg.connect(site.postgres.url, autocommit=True) as admin:
        admin.execute("ALTER ROLE appliance CREATEROLE")
    site.set_up("appliance")
    with psycopg.connect(site.url) as database, pytest.raises(InsufficientPrivilege):
        database.execute("CREATE ROLE x")
    as_node(site.joined("after")).close()


def test_set_up_by_the_appliances_own_role_or_elsewhere_changes_nothing(site: Site) -> None:
    script = site.main.manage("node", "setup")
    for url, why in ((site.url, "needs a superuser"), (site.postgres.url, "This is for the database appliance")):
        assert BIN is not None
        done = subprocess.run([BIN / "psql", "-q", url], input=script, text=True, capture_output=True, check=False)
        assert done.returncode != 0
        assert why in done.stderr
    as_node(site.joined("still")).close()


def test_without_the_set_up_an_invitation_says_what_to_do(site: Site) -> None:
    try:
        with psycopg.connect(site.postgres.superusers("appliance"), autocommit=True) as admin:
            admin.execute("DROP SCHEMA gpushare_admin CASCADE")
        with pytest.raises(subprocess.CalledProcessError) as refused:
            site.main.manage("node", "add", "too-early", stderr=subprocess.PIPE)
        assert "gpushare-manage node setup | sudo -u postgres psql" in refused.value.stderr
    finally:
        site.set_up("appliance")


def test_a_right_that_the_role_has_otherwise_is_warned_of(site: Site) -> None:
    with psycopg.connect(site.postgres.url, autocommit=True) as admin:
        admin.execute("GRANT pg_monitor TO appliance")
        assert "is a member of pg_monitor" in site.set_up("appliance")
        admin.execute("REVOKE pg_monitor FROM appliance")
    assert site.set_up("appliance") == ""
