"""Rows of lists as they are answered, straight from the database's columns: records and their serializers take three
times as long. What each field means is in web/api/answers.py."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Sum

from web.api.answers import ClaimAnswer, ContainerAnswer, GpuAnswer, WaitingAnswer
from web.models import Claim
from web.models.states import state_of
from web.services.sharing import not_kept, ranks
from web.spec.requests import PRIVATE

Row = dict[str, Any]


class Kind(NamedTuple):
    columns: list[str]  # what is read of each row
    answers: Callable[[list[Row]], Iterator[Row]]


_SUMS = {"charged": "used", "granted": "granted", "promised": "quota"}  # of live containers' claims on a GPU
_GPU = [name for name in GpuAnswer.Meta.fields if name not in ("node", *_SUMS)]
_CLAIM = [name for name in ClaimAnswer.Meta.fields if name != "uuid"]
_COMPUTED = {"owner", "node", "state", "gpus", "run_of", "share_not_kept", "ranks", *PRIVATE}
_CONTAINER = [name for name in ContainerAnswer.Meta.fields if name not in _COMPUTED]
_FACTS = ["owner_id", "owner__username", "node__name", "run_of_id", "swapped_at", "paused_at", "kill_requested_at"]
_WAITING = {"position": "queue_position", "reason": "queue_reason", "bytes": "queue_bytes", "since": "suspended_since"}
_SAME = [name for name in WaitingAnswer.Meta.fields if name not in ("owner", "node", "waits_for", "gpus", *_WAITING)]


def _gpus(rows: Iterable[Row]) -> Iterator[Row]:
    live = Claim.objects.filter(gpu__in=[row["pk"] for row in rows], container__finished_at=None).order_by()
    sums = live.values_list("gpu").annotate(*(Sum(column) for column in _SUMS.values()))
    of_gpu = {gpu: dict(zip(_SUMS, each, strict=True)) for gpu, *each in sums}
    none = dict.fromkeys(_SUMS, 0)
    for row in rows:
        known = {**row, **of_gpu.get(row["pk"], none), "node": row["node__name"]}
        yield {name: known[name] for name in GpuAnswer.Meta.fields}


def _containers(rows: Iterable[Row]) -> Iterator[Row]:
    claims = _claims(rows, *_CLAIM, "processes", "gpu__index", "gpu__compute", "gpu__compute_why")
    for row in rows:
        facts, its = SimpleNamespace(**row), claims[row["id"]]
        cards = [SimpleNamespace(index=claim.pop("gpu__index"), compute=claim.pop("gpu__compute"),
                                 compute_why=claim.pop("gpu__compute_why")) for claim in its]  # fmt: skip
        its_ranks = ranks([(claim["uuid"], claim.pop("processes")) for claim in its])
        yield {
            **{name: row[name] for name in _CONTAINER},
            "owner": row["owner__username"],
            "node": row["node__name"],
            "state": state_of(facts),
            "gpus": its,
            "run_of": row["run_of_id"],
            "share_not_kept": not_kept(facts, cards),
            "ranks": its_ranks,
        }


def _waiting(rows: Iterable[Row]) -> Iterator[Row]:
    claims = _claims(rows, "quota", "used")
    for row in rows:
        yield {
            **{name: row[name] for name in _SAME},
            **{name: row[column] for name, column in _WAITING.items()},
            "owner": row["owner__username"],
            "node": row["node__name"] or "",
            "waits_for": "memory" if row["suspended_since"] else "node",
            "since": row["suspended_since"] or row["created_at"],
            "gpus": claims[row["id"]],
        }


def _claims(rows: Iterable[Row], *columns: str) -> dict[UUID, list[Row]]:
    """Of these containers, each with its GPU's uuid."""
    found = defaultdict(list)
    claims = Claim.objects.filter(container__in=[row["id"] for row in rows])
    for claim in claims.values("container_id", "gpu__uuid", *columns):
        found[claim.pop("container_id")].append({"uuid": claim.pop("gpu__uuid"), **claim})
    return found


GPUS = Kind(["pk", *_GPU, "node__name"], _gpus)
CONTAINERS = Kind([*_CONTAINER, *_FACTS], _containers)  # without the private fields
WAITING = Kind([*_SAME, *_WAITING.values(), "created_at", "owner__username", "node__name"], _waiting)
