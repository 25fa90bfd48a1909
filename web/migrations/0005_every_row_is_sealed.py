"""The audit's seals cover more than they did: a row's id, and who owned the container.

What stands there is not sealed anew, seal by seal: hashes of it may have been noted elsewhere. One entry is appended
that covers all of it as seals do now, with every fault that the chain had until today; rows that no seal covered come
under this one's.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

from django.db import migrations
from django.db.models import Exists, F, OuterRef
from django.utils import timezone

from web.audit import seals

TOLD = 20  # faults; how many there are in all is told as well


def seal_what_is_there(apps: Any, schema_editor: Any) -> None:
    models = {name: apps.get_model("web", name).objects.all() for name in ("Seal", "AllocationEvent", "AuditEntry")}
    events, entries = models["AllocationEvent"].annotate(owner=F("container__owner_id")), models["AuditEntry"]
    if not any(rows.exists() for rows in models.values()):
        return
    chain, _ = apps.get_model("web", "Chain").objects.get_or_create(id=1)
    faults = list(_faults(models, chain))
    # After all that is there, whatever the chain says: somebody may have put seals beyond its end, or cut it off.
    end = models["Seal"].order_by("-number").first()
    last, previous = (end.number, end.hash) if end else (0, seals.BEGINNING)
    no_seal = ~Exists(models["Seal"].filter(number=OuterRef("seal_id")))
    seal = models["Seal"].model(number=last + 1, at=timezone.now(), rows=0, previous=previous)
    stray_events, stray_entries = (list(rows.filter(no_seal).order_by("id")) for rows in (events, entries))
    for rows in (stray_events, stray_entries):
        for row in rows:
            row.__class__.objects.filter(pk=row.pk).update(seal_id=seal.number)
    key = seals.audit_keys()[0]
    digest = seals.before(
        key,
        models["Seal"].filter(number__lte=last).order_by("number").iterator(),
        ((event, event.owner) for event in events.filter(seal_id__lte=last).order_by("id").iterator()),
        entries.filter(seal_id__lte=last).order_by("id").iterator(),
    )
    entry = entries.model(
        at=timezone.now(), action=seals.RESEALED, subject=f"up to seal {last}", seal_id=seal.number,
        detail={"digest": digest, "faults": faults[:TOLD], "how_many_faults": len(faults)},
    )  # fmt: skip
    entry.save(force_insert=True)
    covered = [(event, event.owner) for event in stray_events]
    seal.rows = len(covered) + len(stray_entries) + 1
    seal.hash = seals.digest(key, seal, covered, [*stray_entries, entry])
    seal.save(force_insert=True)
    apps.get_model("web", "Chain").objects.filter(id=1).update(number=seal.number, hash=seal.hash)


def _faults(models: Any, chain: Any) -> Any:
    """What was wrong with the chain, as seals were until now."""
    expected, previous = 1, seals.BEGINNING
    for seal in models["Seal"].order_by("number").iterator():
        events = list(models["AllocationEvent"].filter(seal_id=seal.number).order_by("id"))
        entries = list(models["AuditEntry"].filter(seal_id=seal.number).order_by("id"))
        if seal.number != expected or seal.previous != previous:
            yield f"Seal {seal.number} does not follow the one before it."
        if not any(hmac.compare_digest(_hash(key, seal, events, entries), seal.hash) for key in seals.audit_keys()):
            yield f"Seal {seal.number} of {seal.at:%Y-%m-%d %H:%M:%S} is broken."
        expected, previous = seal.number + 1, seal.hash
    if (chain.number, chain.hash) != (expected - 1, previous):
        yield f"The chain should end with seal {chain.number}, but ends with {expected - 1}."
    no_seal = ~Exists(models["Seal"].filter(number=OuterRef("seal_id")))
    for name in ("AllocationEvent", "AuditEntry"):
        for row in models[name].filter(no_seal).order_by("id").iterator():
            yield f"The {row._meta.verbose_name} {row.pk} of {row.at:%Y-%m-%d %H:%M:%S} has no seal."


def _hash(key: bytes, seal: Any, events: Any, entries: Any) -> str:
    line, time = seals.line, seals.time
    digest = hmac.new(key, line(seal.previous, seal.number, time(seal.at), seal.rows), hashlib.sha256)
    for each in events:
        digest.update(line(
            time(each.at), str(each.kind), str(each.container_id), each.gpu_id, each.pid, int(each.bytes),
            each.used_after, float(each.waited), each.policy, each.detail,
        ))  # fmt: skip
    for each in entries:
        digest.update(line(time(each.at), each.action, each.actor, each.address, each.subject, each.detail))
    return digest.hexdigest()


class Migration(migrations.Migration):
    dependencies = [
        ("web", "0004_container_working_dir"),
    ]

    operations = [migrations.RunPython(seal_what_is_there, migrations.RunPython.noop)]
