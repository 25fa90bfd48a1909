"""What a node's own PostgreSQL role may: the rows of its node, and of each only what a scheduler writes.

Nothing is allowed that is not named here, so a release's new tables and columns are closed until they are added, and a
scheduler that is run under such a role in a test finds what is missing. `apply` may be called as often as one likes,
and is after each `migrate` of a database that has nodes. It needs the owner of the tables, once an admin of
PostgreSQL has made the roles' group (setup.py).

Rows are told apart by the policies of PostgreSQL's row-level security; the tables' owner, who the web side is, is not
bound by them. Whose node it is, is by the role that signed in (`session_user`), which a session cannot change.

What is written has to be readable (values.py): one row that nobody can read would end every page with all of them.

The audit's chain is one for all. A node adds to its end: a seal with its own name and by its own key (web/audit/),
events of its containers under it, and then the chain's last number goes up by one. Triggers let it do nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db import DatabaseError, connection, models, transaction

from web.audit.seals import OF_ITS_CONTAINERS, OF_NODES, OF_REQUESTS
from web.models import (
    AllocationEvent,
    Allowance,
    AuditEntry,
    Chain,
    Claim,
    Command,
    Container,
    Gpu,
    GroupShares,
    Node,
    PersonShares,
    Planned,
    RelayOrder,
    Reservation,
    ReservedGpu,
    Seal,
    Usage,
    UsageHour,
    UsageSample,
    Volume,
)
from web.services.joining import planned, values

SECRETS = ("password", "email", "last_login")  # of people
NOT_ITS = ("id", "name", "role", "labels", "placer", "drained_at", "removed_at")  # of a node: what only people change
OBSERVED = (
    "node", "engine", "engine_id", "started_at", "paused_at", "swap", "swapped_at", "swapped", "gave_way",
    "gave_way_to", "card_move", "cannot_move", "not_restored", "no_turns", "suspended_since", "suspended_seconds",
    "kill_requested_at", "finished_at", "exit_code", "clock_ahead", "reason", "removed_at", "idle_since", "cpus_used",
    "memory_used", "queue_position", "queue_bytes", "queue_reason", "expected_at", "expected_by", "namespace", "pods",
    "gpu_memory", "priority", "priority_across", "compute_weight", "compute_limit",  # a change, once it is carried out
)  # fmt: skip
BY_VOLUME = ("name", "image", "command", "memory", "cpus")  # of what Docker starts: as Docker shows it (a trigger)
OUTCOME = ("taken_at", "done_at", "outcome", "code", "status", "field", "message", "result")

LONGEST_ROLE = 63  # bytes
PLACED = "Placed by Swarm."
HERE = "gpushare_node()"
END = "(SELECT number + 1 FROM web_chain WHERE id = 1)"  # of the chain: the number of the next seal
NEXT = "gpushare_next_command()"  # number of a command
MINE = f"node_id = {HERE}"
MY_CONTAINER = "gpushare_has(container_id)"
MY_GPU = "gpushare_has_gpu(gpu_id)"
UUID = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"  # a regular expression
OF_MINE = f"""CASE WHEN action IN {OF_ITS_CONTAINERS} AND subject ~ '{UUID}'
    THEN gpushare_has(subject::uuid) ELSE false END"""


@dataclass(frozen=True, slots=True)
class Rule:
    """`reads`: which rows, in SQL. The others: which rows, and which columns (None: all but the key)."""

    model: type[models.Model]
    reads: str = "true"
    hides: tuple[str, ...] = ()
    inserts: str = ""
    inserted: tuple[str, ...] | None = None
    updates: str = ""
    updated: tuple[str, ...] | None = None
    deletes: str = ""

    @property
    def table(self) -> str:
        return self.model._meta.db_table

    def fields(self, names: Iterable[str] | None) -> set[str]:
        """These; None: all but the key."""
        return {*_others(self.model)} if names is None else {*names}

    def columns(self, names: Iterable[str] | None) -> str:
        wanted = self.fields(names)
        return ", ".join(f'"{field.column}"' for field in self.model._meta.concrete_fields if field.name in wanted)

    def may_be(self, rows: str, names: Iterable[str] | None) -> str:
        """These rows, with such values in these columns that everybody can read them, in SQL."""
        return f"({rows}) AND {values.readable(self.model, self.fields(names))}" if rows else "false"


def _rules() -> list[Rule]:
    user = get_user_model()
    here = tuple(field.name for field in Node._meta.concrete_fields if field.name not in NOT_ITS)
    ours = f"({MINE} OR {MY_CONTAINER})"
    return [
        Rule(user, hides=SECRETS),
        Rule(Group),
        Rule(user.groups.through),
        Rule(Allowance),
        Rule(Node, updates=f"id = {HERE}", updated=here),
        Rule(Gpu, inserts=MINE, updates=MINE),
        Rule(
            Container, reads=MINE, updates=MINE, updated=(*OBSERVED, *BY_VOLUME), inserted=("id", *_others(Container)),
            inserts=f"{MINE} AND (volume <> '' AND mount <> '' OR {planned.OF_MINE})",
        ),
        # What Docker asks of the volume plugin, and a kubelet of the driver, is no deed of a person: a node may
        # write that, and nothing that the appliance itself goes by.
        Rule(
            AuditEntry, hides=tuple(_others(AuditEntry)),
            inserts=f"actor IN {OF_NODES} AND (action IN {OF_REQUESTS} OR {OF_MINE}) AND seal_id = {END}",
        ),
        Rule(
            Claim, reads=MY_CONTAINER, inserts=f"{MY_CONTAINER} AND {MY_GPU}", updates=f"{MY_CONTAINER} AND {MY_GPU}",
        ),
        # It asks for nothing but a pause of its own containers, and the launch of what people planned to be here.
        Rule(
            Command, reads=ours, updates=ours, updated=OUTCOME, inserted=("id", *_others(Command)),
            inserts=f"(kind = 'pause' AND issued_by_id IS NULL OR {planned.LAUNCHES})"
            f" AND {MINE} AND {MY_CONTAINER} AND number <= {NEXT}",
        ),
        Rule(Planned, reads=MINE, updates=MINE, updated=("unread", *planned.OBSERVED)),
        Rule(
            AllocationEvent, reads=MY_CONTAINER,
            inserts=f"{MY_CONTAINER} AND (gpu_id IS NULL OR {MY_GPU}) AND seal_id = {END}",
        ),
        Rule(
            UsageSample, reads=MY_GPU, deletes=MY_GPU,
            inserts=f"{MY_GPU} AND (container_id IS NULL OR {MY_CONTAINER})",
        ),
        Rule(Reservation),
        Rule(ReservedGpu, updates=MY_GPU, updated=("short",)),
        Rule(PersonShares),
        Rule(GroupShares),
        Rule(Usage, inserts=MY_GPU, updates=MY_GPU),
        Rule(UsageHour, reads=MY_GPU, inserts=MY_GPU, updates=MY_GPU, deletes=MY_GPU),
        Rule(Volume, reads=MINE, inserts=MINE, updates=MINE, deletes=MINE),
        Rule(RelayOrder, reads=f"{MINE} AND {MY_CONTAINER}", deletes=f"{MINE} AND {MY_CONTAINER}"),
        Rule(Seal, inserts=f"node = gpushare_node_name() AND number = {END}", inserted=("number", *_others(Seal))),
        Rule(Chain, updates="id = 1"),
    ]  # fmt: skip


def _others(model: type[models.Model]) -> list[str]:
    return [field.name for field in model._meta.concrete_fields if not field.primary_key]


def group() -> str:
    """The role that holds what all nodes of this database may; each node's own is a member."""
    return _role("nodes")


def name_of_role(node: int) -> str:
    """The name of a node's own role."""
    return _role(f"node_{node}")


def _role(whose: str) -> str:
    """Roles are all databases': each has its own in the name, whole or as a digest: PostgreSQL cuts off the rest."""
    database = str(connection.settings_dict["NAME"])
    if len(name := f"{database}_{whose}".encode()) <= LONGEST_ROLE:
        return name.decode()
    return f"{hashlib.sha256(database.encode()).hexdigest()[:32]}_{whose}"


def are_applied() -> bool:
    """Whether this database was set up for nodes with roles of their own."""
    if connection.vendor != "postgresql":
        return False
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [group()])
        return cursor.fetchone() is not None


def is_open() -> bool:
    """Whether a node could make things in the schema: operators there would be called by functions that see all."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT has_schema_privilege(%s, 'public', 'CREATE')", [group()])
        return bool(cursor.fetchone()[0])


def apply() -> None:
    """Makes the rules in the database what they are here. Not within a transaction. Raises DatabaseError.

    Each table's in a transaction of its own: they lock it, and who held one while it waits for the next would sooner or
    later wait for a scheduler that waits for the first.
    """
    quoted = connection.ops.quote_name(group())
    with _alone(), connection.cursor() as cursor:
        for statement in (values.FUNCTIONS, FUNCTIONS, *TRIGGERS):
            cursor.execute(statement)
        cursor.execute(OUR_FUNCTIONS)
        for (function,) in cursor.fetchall():  # else whoever may sign in to this database may call them
            cursor.execute(f"REVOKE ALL ON FUNCTION {function} FROM PUBLIC")
            cursor.execute(f"GRANT EXECUTE ON FUNCTION {function} TO {quoted}")
        if is_open():  # as in databases that began before PostgreSQL 15
            with suppress(DatabaseError), transaction.atomic():
                cursor.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        cursor.execute(f"GRANT USAGE ON SCHEMA public TO {quoted}")
        cursor.execute(f"GRANT SELECT ON django_migrations TO {quoted}")
        rules = {rule.table: rule for rule in _rules()}
        for table in connection.introspection.table_names(cursor):
            if table != "django_migrations":
                with transaction.atomic():
                    cursor.execute(f"REVOKE ALL ON {connection.ops.quote_name(table)} FROM {quoted}")
                    for statement in _statements(rules[table], quoted) if table in rules else ():
                        cursor.execute(statement)


@contextmanager
def _alone() -> Iterator[None]:
    """Two that make the rules at once would fail. A node may take this lock, too: it is not waited for without end."""
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '10s'")
        try:
            cursor.execute("SELECT pg_advisory_lock(hashtext('gpushare rules'))")
        finally:
            cursor.execute("RESET lock_timeout")
        try:
            yield
        finally:
            cursor.execute("SELECT pg_advisory_unlock(hashtext('gpushare rules'))")


def after_migrate(**_: object) -> None:
    """What a release adds or takes away is closed or open to nodes as this release says."""
    if are_applied():
        apply()


def _statements(rule: Rule, to: str) -> Iterator[str]:
    table = rule.table
    shown = rule.columns([f.name for f in rule.model._meta.concrete_fields if f.name not in rule.hides])
    yield f"GRANT SELECT ({shown}) ON {table} TO {to}"
    if rule.inserts:
        yield f"GRANT INSERT ({rule.columns(rule.inserted)}) ON {table} TO {to}"
    if rule.updates:
        yield f"GRANT UPDATE ({rule.columns(rule.updated)}) ON {table} TO {to}"
    if rule.deletes:
        yield f"GRANT DELETE ON {table} TO {to}"
    policies = {
        "select": f"USING ({rule.reads})",
        "insert": f"WITH CHECK ({rule.may_be(rule.inserts, rule.inserted)})",
        "update": f"USING ({rule.updates or 'false'}) WITH CHECK ({rule.may_be(rule.updates, rule.updated)})",
        "delete": f"USING ({rule.deletes or 'false'})",
    }
    yield f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY"
    for verb, which in policies.items():
        yield f"DROP POLICY IF EXISTS gpushare_{verb} ON {table}"
        yield f"CREATE POLICY gpushare_{verb} ON {table} FOR {verb.upper()} TO {to} {which}"


# The same in SQL as `_wanted` in web/services/placement/accept_placement.py; $1 and $2 are the launch and its key.
_WANTED = "id = $1 AND handed = $2 AND handed <> '' AND kill_requested_at IS NULL AND finished_at IS NULL"
_DEFINER = "LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp"

OUR_FUNCTIONS = r"""SELECT format('%I(%s)', proname, pg_get_function_identity_arguments(oid)) FROM pg_proc
    WHERE pronamespace = 'public'::regnamespace AND proname LIKE 'gpushare\_%'"""

# They run as the tables' owner, and so see all rows: each answers one question.
FUNCTIONS = f"""
CREATE OR REPLACE FUNCTION gpushare_node() RETURNS bigint {_DEFINER} AS
    $$SELECT id FROM web_node WHERE role = session_user AND role <> ''$$;
CREATE OR REPLACE FUNCTION gpushare_node_name() RETURNS text {_DEFINER} AS
    $$SELECT name::text FROM web_node WHERE role = session_user AND role <> ''$$;
CREATE OR REPLACE FUNCTION gpushare_has(container uuid) RETURNS boolean {_DEFINER} AS
    $$SELECT EXISTS (SELECT 1 FROM web_container WHERE id = container AND {MINE})$$;
CREATE OR REPLACE FUNCTION gpushare_has_gpu(gpu bigint) RETURNS boolean {_DEFINER} AS
    $$SELECT EXISTS (SELECT 1 FROM web_gpu WHERE id = gpu AND node_id = {HERE})$$;

{planned.functions(_DEFINER, MINE)}
-- A node sees its own commands' numbers alone. One far above all others would leave none for those that follow.
CREATE OR REPLACE FUNCTION {NEXT} RETURNS bigint {_DEFINER} AS
    $$SELECT coalesce(max(number), 0) + 1 FROM web_command$$;

-- A card that its node has started without, or that was removed, and on which nobody has a quota any more:
-- scheduler/store/cards.py.
CREATE OR REPLACE FUNCTION gpushare_take_card(card text) RETURNS boolean
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp AS
    $$WITH taken AS (
        UPDATE web_gpu g SET node_id = {HERE}
        WHERE g.uuid = $1 AND NOT g.present AND {HERE} IS NOT NULL AND NOT EXISTS (
            SELECT FROM web_claim l JOIN web_container c ON c.id = l.container_id
            WHERE l.gpu_id = g.id AND c.finished_at IS NULL)
        RETURNING 1
      ) SELECT EXISTS (SELECT 1 FROM taken)$$;

-- What somebody's live containers on all nodes were promised (null: nothing yet) and ask for: web/people/allowances.py.
CREATE OR REPLACE FUNCTION gpushare_held(person bigint)
    RETURNS TABLE (container uuid, promised numeric, gpu_memory bigint, gpu_count integer) {_DEFINER} AS
    $$SELECT c.id, (SELECT sum(quota) FROM web_claim WHERE container_id = c.id), c.gpu_memory, c.gpu_count::integer
      FROM web_container c WHERE c.owner_id = person AND c.finished_at IS NULL$$;
CREATE OR REPLACE FUNCTION gpushare_hold(person bigint) RETURNS void
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp AS
    $$SELECT FROM auth_user WHERE id = person FOR NO KEY UPDATE$$;

-- Of what a Swarm has been handed, a node takes what it has the key of: web/services/placement/accept_placement.py.
CREATE OR REPLACE FUNCTION gpushare_is_wanted(launch uuid, key text) RETURNS boolean {_DEFINER} AS
    $$SELECT EXISTS (SELECT 1 FROM web_container WHERE {_WANTED})$$;
CREATE OR REPLACE FUNCTION gpushare_take(launch uuid, key text, volume text, mount text) RETURNS boolean
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp AS
    $$SELECT FROM auth_user WHERE id = (SELECT owner_id FROM web_container WHERE {_WANTED}) FOR NO KEY UPDATE;
      WITH taken AS (
        UPDATE web_container c SET node_id = {HERE}, node_reason = coalesce(nullif(c.node_reason, ''), '{PLACED}'),
            volume = $3, mount = $4, engine = '', queue_reason = ''
        WHERE {_WANTED} AND c.engine = 'swarm' AND c.mount = '' AND started_at IS NULL AND {HERE} IS NOT NULL
        RETURNING 1
      ) SELECT EXISTS (SELECT 1 FROM taken)$$;

-- Of what a Swarm begins again, who has the key sees all runs: web/services/runs.py.
CREATE OR REPLACE FUNCTION gpushare_runs(launch uuid, key text) RETURNS SETOF web_container {_DEFINER} AS
    $$SELECT c.* FROM web_container c, web_container f
      WHERE f.id = $1 AND f.handed = $2 AND f.handed <> '' AND f.restart <> '' AND $1 IN (c.id, c.run_of_id)$$;
CREATE OR REPLACE FUNCTION gpushare_removed_runs(launch uuid, key text) RETURNS SETOF uuid {_DEFINER} AS
    $$SELECT r.id FROM gpushare_runs($1, $2) r
      WHERE EXISTS (SELECT FROM web_command WHERE container_id = r.id AND kind = 'remove' AND outcome <> 'refused')$$;
CREATE OR REPLACE FUNCTION gpushare_is_named(asked text) RETURNS boolean {_DEFINER} AS
    $$SELECT EXISTS (SELECT 1 FROM web_container WHERE name = $1 AND finished_at IS NULL)$$;

-- What was asked for here stays as it was; of a container that Docker starts it is found out later.
CREATE OR REPLACE FUNCTION gpushare_asked_stays() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    IF gpushare_node() IS NOT NULL AND OLD.mount = '' AND (OLD.name, OLD.image, OLD.command, OLD.memory, OLD.cpus)
        IS DISTINCT FROM (NEW.name, NEW.image, NEW.command, NEW.memory, NEW.cpus) THEN
        RAISE insufficient_privilege USING MESSAGE = 'a node does not change what was asked for';
    END IF;
    RETURN NEW;
END $$;

-- A node's own seal is the only thing that it may add to the chain.
CREATE OR REPLACE FUNCTION gpushare_chain_grows() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    IF gpushare_node() IS NOT NULL AND (NEW.id <> OLD.id OR NEW.number <> OLD.number + 1 OR NOT EXISTS (
        SELECT 1 FROM web_seal
        WHERE number = NEW.number AND previous = OLD.hash AND hash = NEW.hash AND node = gpushare_node_name()
    )) THEN
        RAISE insufficient_privilege USING MESSAGE = 'a node adds its own seals to the end of the chain, nothing else';
    END IF;
    RETURN NEW;
END $$;

-- What it adds is under a seal that comes with it: nobody else adds one before it is done.
CREATE OR REPLACE FUNCTION gpushare_under_its_seal() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    last bigint;
BEGIN
    IF gpushare_node() IS NOT NULL THEN
        SELECT number INTO last FROM web_chain WHERE id = 1 FOR UPDATE;
        IF EXISTS (SELECT FROM added WHERE seal_id <> last + 1) THEN
            RAISE insufficient_privilege USING MESSAGE = 'a node adds to the audit log under its own seal';
        END IF;
    END IF;
    RETURN NULL;
END $$;

-- A seal that the chain did not end with would be in everybody's way for ever.
CREATE OR REPLACE FUNCTION gpushare_seal_is_the_end() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    IF gpushare_node() IS NOT NULL AND NOT EXISTS (SELECT FROM web_chain WHERE id = 1 AND number >= NEW.number) THEN
        RAISE insufficient_privilege USING MESSAGE = 'a node adds a seal and moves the end of the chain, at once';
    END IF;
    RETURN NULL;
END $$;
"""

TRIGGERS = (
    """CREATE OR REPLACE TRIGGER gpushare_asked_stays BEFORE UPDATE ON web_container
       FOR EACH ROW EXECUTE FUNCTION gpushare_asked_stays()""",
    """CREATE OR REPLACE TRIGGER gpushare_chain_grows BEFORE UPDATE ON web_chain
       FOR EACH ROW EXECUTE FUNCTION gpushare_chain_grows()""",
    *(
        f"""CREATE OR REPLACE TRIGGER gpushare_under_its_seal AFTER INSERT ON {table} REFERENCING NEW TABLE AS added
            FOR EACH STATEMENT EXECUTE FUNCTION gpushare_under_its_seal()"""
        for table in ("web_allocationevent", "web_auditentry")
    ),
    # At the end of the transaction; such a trigger cannot be replaced.
    """DO $$ BEGIN
        IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgname = 'gpushare_seal_is_the_end') THEN
            CREATE CONSTRAINT TRIGGER gpushare_seal_is_the_end AFTER INSERT ON web_seal DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION gpushare_seal_is_the_end();
        END IF;
    END $$""",
)
