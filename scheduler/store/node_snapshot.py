"""What this host knows of its own records, in case the next scheduler has to start without the database.

Nothing here is asked while the database answers. It is kept in the journal, by row: this host, its cards, its volumes,
and the containers that live, with their claims, what the last event said that they use, and their owner's name;
without what owners make large or secret.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

from django.contrib.auth import get_user_model
from django.db import models

from web.models import Claim, Container, Gpu, Node, Usage, Volume, large

M = TypeVar("M", bound=models.Model)
Fields = dict[str, Any]
Row = tuple[type[models.Model], Any]  # and its key: a claim's are those of its container and its GPU
Rows = dict[Row, Fields]

UNNEEDED = {
    *large(), "volumes", "ports", "launch_key", "launch_digest", "notify",
    "cpus_used", "memory_used", "queue_position", "queue_bytes", "queue_reason", "expected_at", "expected_by",
}  # fmt: skip
NEEDED: dict[type[models.Model], Collection[str]] = {
    Claim: ("quota", "peak", "had", "due", "held_back", "reported"),  # reported: bytes, by the last event
    Container: {each.attname for each in Container._meta.concrete_fields} - UNNEEDED,
    Gpu: ("uuid", "context", "compute_asked", "drained_at", "drain_reason"),
    Node: ("name", "moved", "policy_asked"),
    Usage: ("had", "due", "at", "forgiven"),
    Volume: ("options",),
}


class NodeSnapshot:
    def __init__(self, rows: Rows) -> None:
        """`rows`: as they are kept, of texts for times and ids."""
        self._rows = rows
        self._uuids = {pk: fields["uuid"] for pk, fields in self._of(Gpu)}

    def node(self) -> tuple[int, str]:
        """Its key in the database and its name. 0: nothing is known."""
        return next(((pk, fields["name"]) for pk, fields in self._of(Node)), (0, ""))

    def gpus(self) -> dict[str, int]:
        """Their keys in the database, by UUID."""
        return {uuid: pk for pk, uuid in self._uuids.items()}

    def contexts(self) -> dict[str, int]:
        return {fields["uuid"]: fields["context"] for _, fields in self._of(Gpu) if fields["context"]}

    def compute_asked(self) -> dict[str, str]:
        return {fields["uuid"]: fields["compute_asked"] for _, fields in self._of(Gpu) if fields["compute_asked"]}

    def drained(self) -> dict[str, tuple[bool, str]]:
        known = ((fields["uuid"], fields["drained_at"], fields["drain_reason"]) for _, fields in self._of(Gpu))
        return {uuid: (at is not None, reason) for uuid, at, reason in known if reason}

    def policy_asked(self) -> str:
        return next((str(fields["policy_asked"]) for _, fields in self._of(Node)), "")

    def moved(self) -> dict[str, tuple[float, float]]:
        return {kind: (size, took) for _, fields in self._of(Node) for kind, (size, took) in fields["moved"].items()}

    def volumes(self) -> dict[str, dict[str, str]]:
        """Name → options."""
        return {name: fields["options"] for name, fields in self._of(Volume)}

    def usage(self) -> list[tuple[int, Usage]]:
        """By the GPU's key."""
        rows = [(gpu, as_row(Usage, fields | {"person": person})) for (gpu, person), fields in self._of(Usage)]
        return [(gpu, row) for gpu, row in rows if row.at]

    def used(self) -> dict[str, dict[str, int]]:
        """What the last event said: container → GPU → bytes."""
        used: dict[str, dict[str, int]] = {}
        for (container, gpu), fields in self._of(Claim):
            if "reported" in fields:
                used.setdefault(container, {})[self._uuids[gpu]] = fields["reported"]
        return used

    def containers(self) -> list[Container]:
        """Those that live, as rows with owner and claims."""
        living = {id_: as_row(Container, fields) for id_, fields in self._of(Container) if not fields["finished_at"]}
        claims: dict[str, list[Claim]] = {id_: [] for id_ in living}
        for (id_, gpu), fields in self._of(Claim):
            if id_ in living:
                card = Gpu(pk=gpu, uuid=self._uuids[gpu])
                claims[id_].append(as_row(Claim, fields, container=living[id_], gpu=card))
        for id_, row in living.items():
            row.owner = get_user_model()(pk=row.owner_id, username=self._rows[Container, id_]["owner"])
            row._prefetched_objects_cache = {"claims": claims[id_]}  # type: ignore[attr-defined]
        return sorted(living.values(), key=lambda row: row.created_at)

    def _of(self, model: type[models.Model]) -> list[tuple[Any, Fields]]:
        return [(pk, fields) for (of, pk), fields in self._rows.items() if of is model]


def needed(model: type[models.Model], fields: Mapping[str, Any]) -> Fields:
    return {name: value for name, value in fields.items() if name in NEEDED.get(model, ())}


def of_node(node: Node, gpus: Iterable[Gpu]) -> Rows:
    return {(type(row), row.pk): of_row(row) for row in (node, *gpus)}


def of_volumes(options: Mapping[str, Mapping[str, str]]) -> Rows:
    """`options`: by the volume's name."""
    return {(Volume, name): {"options": its} for name, its in options.items()}


def of_container(row: Container) -> Rows:
    return {(Container, str(row.pk)): {**of_row(row), "owner": row.owner.get_username()}}


def of_containers(rows: Iterable[Container], used: Mapping[str, Mapping[str, int]]) -> Rows:
    """With their claims. `used`: container → GPU → bytes, by the last event."""
    found: Rows = {}
    for row in rows:
        found |= of_container(row)
        for claim in row.claims.all():
            size = used.get(str(row.pk), {}).get(claim.gpu.uuid)
            of_event = {} if size is None else {"reported": size}
            found[Claim, (str(row.pk), claim.gpu_id)] = {**of_row(claim), **of_event}
    return found


def as_row(model: type[M], fields: Mapping[str, Any], **related: models.Model) -> M:
    """A row as it was in the database, of texts for times and ids."""
    known = {each.attname: each for each in model._meta.concrete_fields}
    return model(**{name: known[name].to_python(value) for name, value in fields.items() if name in known}, **related)


def of_row(row: models.Model) -> Fields:
    return {name: getattr(row, name) for name in NEEDED[type(row)] if hasattr(row, name)}
