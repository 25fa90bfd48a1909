"""What this host knows of its own records, in case the next scheduler has to start without the database.

Nothing here is asked while the database answers. Entries, by key: "node", "gpu UUID", "volume NAME" and "container ID":
those that live, with their claims, what the last event said that they use, and their owner's name; without what owners
make large or secret.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from django.contrib.auth import get_user_model
from django.db import models

from scheduler.store.journal import Fields
from web.models import Claim, Container, Gpu, Node, large

M = TypeVar("M", bound=models.Model)

UNNEEDED = {
    *large(), "volumes", "ports", "launch_key", "launch_digest", "notify",
    "cpus_used", "memory_used", "queue_position", "queue_bytes", "queue_reason", "expected_at", "expected_by",
}  # fmt: skip
OF_A_CLAIM = ("quota", "peak", "had", "due", "held_back")
OF_A_GPU = ("context", "compute_asked")
OF_A_NODE = ("moved", "policy_asked")


class NodeSnapshot:
    def __init__(self) -> None:
        self._entries: dict[str, Fields] = {}
        self._changed: set[str] = set()
        self._gpus: dict[int, str] = {}  # by their keys in the database

    # ---- learning ----

    def here(self, node: Node, gpus: Iterable[Gpu]) -> None:
        """From the database: this host and its cards."""
        self._set("node", {"pk": node.pk, "name": node.name, **_some(node, OF_A_NODE)})
        for gpu in gpus:
            self._set(f"gpu {gpu.uuid}", {"pk": gpu.pk, **_some(gpu, OF_A_GPU)})
            self._gpus[gpu.pk] = gpu.uuid

    def living(self, rows: Iterable[Container], told: Mapping[str, Mapping[str, int]]) -> None:
        """From the database: these live, and no others. `told`: container → GPU → bytes, by the last event."""
        found = {_key(row.pk): row for row in rows}
        for key in [key for key in self._entries if key.startswith("container ") and key not in found]:
            self._forget(key)
        for key, row in found.items():
            claims = {claim.gpu.uuid: _some(claim, OF_A_CLAIM) for claim in row.claims.all()}
            self._set(key, _entry(row, claims, dict(told.get(str(row.pk), {}))))

    def volumes(self) -> dict[str, dict[str, str]]:
        """Name → options."""
        return {name: dict(entry["options"]) for name, entry in self._of("volume")}

    def volume(self, name: str, options: Mapping[str, str] | None) -> None:
        """None: it is not there any more."""
        if options is None:
            self._forget(f"volume {name}")
        else:
            self._set(f"volume {name}", {"options": dict(options)})

    def promised(self, row: Container, quota: Mapping[str, int]) -> None:
        """It is to have these claims (bytes by GPU), and may be started from now on.

        `row` may be of an earlier moment than what is known: a command has it from when it was read, and may wait.
        """
        known = self._entries.get(_key(row.pk))
        if known is None and row.started_at is not None:
            return  # it has ended meanwhile
        entry = known or _entry(row, {}, {})
        claims = {gpu: {**entry["claims"].get(gpu, {}), "quota": size} for gpu, size in quota.items()}
        self._set(_key(row.pk), {**entry, "claims": claims})

    def put(self, model: type[models.Model], key: Any, fields: Mapping[str, Any]) -> None:
        """What is told of a row, if it is one that matters here."""
        if model is Container:
            self._update(_key(key), "fields", {n: value for n, value in fields.items() if n not in UNNEEDED})
            if fields.get("finished_at") is not None:
                self._forget(_key(key))
        elif model is Claim and (gpu := self._gpus.get(key[1])):
            entry = self._entries.get(_key(key[0]))
            claim = {name: fields[name] for name in OF_A_CLAIM if name in fields}
            if entry is not None and claim:
                entry["claims"].setdefault(gpu, {}).update(claim)
                self._changed.add(_key(key[0]))
        elif model is Node:
            self._update("node", "", {name: fields[name] for name in OF_A_NODE if name in fields})
        elif model is Gpu and (gpu := self._gpus.get(key)):
            self._update(f"gpu {gpu}", "", {name: fields[name] for name in OF_A_GPU if name in fields})

    def told(self, container: str, gpu: str, used: int) -> None:
        self._update(_key(container), "told", {gpu: used})

    def take_changed(self, only: Any = None) -> dict[str, Fields | None]:
        """What is to be kept since the last call, as it is now; None: it is to be forgotten. `only` of this container.

        It is to be kept after what has led to it: else nobody would look for an end of which nothing has been kept. So
        of `only` one container, for which that is not waited for, nothing is forgotten yet.
        """
        changed = self._changed if only is None else self._changed & self._entries.keys() & {_key(only)}
        self._changed = self._changed - changed
        return {key: _copied(self._entries.get(key)) for key in changed}

    def put_back(self, changed: Iterable[str]) -> None:
        self._changed.update(changed)

    # ---- recalling ----

    def recall(self, entries: Mapping[str, Fields], rows: Iterable[tuple[type[models.Model], Any, Fields]]) -> None:
        """What an earlier scheduler knew, and what it had still to write."""
        self._entries = dict(entries)
        self._gpus = {pk: uuid for uuid, pk in self.gpus().items()}
        for model, key, fields in rows:
            self.put(model, key, fields)

    def node(self) -> int:
        """Its key in the database. 0: nothing is known."""
        return int(self._entries.get("node", {}).get("pk", 0))

    def name(self) -> str:
        return str(self._entries.get("node", {}).get("name", ""))

    def gpus(self) -> dict[str, int]:
        """Their keys in the database, by UUID."""
        return {uuid: entry["pk"] for uuid, entry in self._of("gpu")}

    def contexts(self) -> dict[str, int]:
        return {uuid: entry["context"] for uuid, entry in self._of("gpu") if entry["context"]}

    def compute_asked(self) -> dict[str, str]:
        return {uuid: entry["compute_asked"] for uuid, entry in self._of("gpu") if entry["compute_asked"]}

    def policy_asked(self) -> str:
        return str(self._entries.get("node", {}).get("policy_asked", ""))

    def moved(self) -> dict[str, tuple[float, float]]:
        moved = self._entries.get("node", {}).get("moved", {})
        return {kind: (size, took) for kind, (size, took) in moved.items()}

    def used(self) -> dict[str, dict[str, int]]:
        """What the last event said: container → GPU → bytes."""
        return {id_: dict(entry["told"]) for id_, entry in self._of("container")}

    def containers(self) -> list[Container]:
        """Those that live, as rows with owner and claims."""
        found = [self._container(entry) for _, entry in self._of("container")]
        return sorted(found, key=lambda row: row.created_at)

    def _container(self, entry: Fields) -> Container:
        row = _row(Container, entry["fields"])
        row.owner = get_user_model()(pk=row.owner_id, username=entry["owner"])
        pks = self.gpus()
        claims = [
            _row(Claim, fields, container=row, gpu=Gpu(pk=pks[uuid], uuid=uuid))
            for uuid, fields in entry["claims"].items()
        ]
        row._prefetched_objects_cache = {"claims": claims}  # type: ignore[attr-defined]
        return row

    # ---- helpers ----

    def _of(self, kind: str) -> list[tuple[str, Fields]]:
        prefix = f"{kind} "
        return [(key.removeprefix(prefix), entry) for key, entry in self._entries.items() if key.startswith(prefix)]

    def _set(self, key: str, entry: Fields) -> None:
        if self._entries.get(key) != entry:
            self._entries[key] = entry
            self._changed.add(key)

    def _update(self, key: str, part: str, fields: Mapping[str, Any]) -> None:
        entry = self._entries.get(key)
        if entry is not None and fields:
            (entry[part] if part else entry).update(fields)
            self._changed.add(key)

    def _forget(self, key: str) -> None:
        if self._entries.pop(key, None) is not None:
            self._changed.add(key)


def _copied(entry: Any) -> Any:
    return {name: _copied(value) for name, value in entry.items()} if isinstance(entry, dict) else entry


def _key(container: Any) -> str:
    return f"container {container}"


def _entry(row: Container, claims: dict[str, Fields], told: Fields) -> Fields:
    names = [field.attname for field in Container._meta.concrete_fields if field.attname not in UNNEEDED]
    return {"fields": _some(row, names), "owner": row.owner.get_username(), "claims": claims, "told": told}


def _some(row: models.Model, names: Iterable[str]) -> Fields:
    return {name: getattr(row, name) for name in names}


def _row(model: type[M], fields: Mapping[str, Any], **related: models.Model) -> M:
    """A row as it was in the database, of texts for times and ids."""
    known = {each.attname: each for each in model._meta.concrete_fields}
    return model(**{name: known[name].to_python(value) for name, value in fields.items() if name in known}, **related)
