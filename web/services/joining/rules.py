"""What a node's own PostgreSQL role may: the rows of its node, and of each only what a scheduler writes.

Nothing is allowed that is not named here, so a release's new tables and columns are closed until they are added, and a
scheduler that is run under such a role in a test finds what is missing. `apply` may be called as often as one likes,
and is after each `migrate` of a database that has nodes. It needs the owner of the tables, once an admin of
PostgreSQL has made the roles' group (setup.py).

Rows are separated by the policies of PostgreSQL's row-level security; the tables' owner, who the web side is, is not
bound by them. Whose node it is, is by the role that signed in (`session_user`), which a session cannot change.

What is written has to be readable (values.py): one row that nobody can read would end every page with all of them.

The audit's chain is one for all. A node adds to its end: a seal with its own name and by its own key (web/audit/),
events of its containers under it, and then the chain's last number goes up by one. Triggers let it do nothing else.
"""

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
    Reservation,
    ReservedGpu,
    Seal,
    Usage,
    UsageHour,
    UsageSample,
    Volume,
)
from web.services.joining import planned, values
from web.services.joining.functions import FUNCTIONS, HERE, MINE, NEXT, OUR_FUNCTIONS, TRIGGERS

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
END = "(SELECT number + 1 FROM web_chain WHERE id = 1)"  # of the chain: the number of the next seal
MY_CONTAINER = "gpushare_has(container_id)"
MY_GPU = "gpushare_has_gpu(gpu_id)"
OF_ACCOUNT = f"{MY_GPU} AND person IN (SELECT username FROM auth_user)"
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
        Rule(Usage, inserts=OF_ACCOUNT, updates=MY_GPU, updated=("had", "due", "at", "forgiven", "ratio", "share")),
        Rule(UsageHour, reads=MY_GPU, inserts=OF_ACCOUNT, updates=MY_GPU, updated=("had", "due"), deletes=MY_GPU),
        Rule(Volume, reads=MINE, inserts=MINE, updates=MINE, deletes=MINE),
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
