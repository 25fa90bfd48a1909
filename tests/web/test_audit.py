"""The audit log tells everything, and any change to it is found."""

import hashlib
import io
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from tests.support.events import EventKind, append
from tests.support.machine import GIB, make_container
from tests.support.people import client_for, make_user
from web import audit
from web.audit import verifying
from web.models import AllocationEvent, AuditEntry, Chain, Seal
from web.people.roles import Role
from web.spec.requests import KillSpec

pytestmark = pytest.mark.django_db


@pytest.fixture
def history(ada, gpu):
    """Five seals: three entries, one event, and one batch of ten events."""
    container = make_container(ada, "a", gpu)
    audit.record("ada", "launch", container.pk, gpu_memory=GIB, note="naïve ☃", ratio=0.1)
    audit.record("bob", "launch-refused", "b", code="over_capacity")
    append(container, timezone.now(), EventKind.STARTED)
    batch = [
        AllocationEvent(
            container=container, gpu=gpu, at=timezone.now(), kind=EventKind.ACCEPTED, bytes=index, waited=index
        )
        for index in range(10)
    ]
    audit.append(events=batch)
    audit.record("ada", "kill", container.pk)


def test_events_are_written_as_they_are_and_numbered_in_their_order(ada, gpu):
    """More than one statement takes; with each kind of value that a caller may bring."""
    container = make_container(ada, "a", gpu)
    elsewhere = timezone.now().astimezone(timezone.get_fixed_timezone(330))
    shown = {
        "at": elsewhere, "kind": EventKind.REJECTED, "container_id": str(container.pk), "gpu_id": gpu.pk, "pid": 7,
        "bytes": 2**63 - 1, "used_after": GIB, "waited": 0.1, "policy": "fair", "detail": "50 % of ☃'s",
    }  # fmt: skip
    bare = {"at": timezone.now(), "kind": "accepted", "container": container}
    events = [AllocationEvent(**(shown if number % 3 else bare)) for number in range(2000)]
    audit.append(events=events)
    ids = [event.pk for event in events]
    assert ids == sorted(ids)
    found = AllocationEvent.objects.in_bulk(ids)
    for event in events:
        there = found[event.pk]
        assert there.container_id == container.pk
        for name in ("at", "kind", "gpu_id", "pid", "bytes", "used_after", "waited", "policy", "detail", "seal_id"):
            assert getattr(there, name) == getattr(event, name), name
    assert faults() == []


def faults() -> list[str]:
    return audit.verify()[1]


def test_an_honest_log_verifies(history):
    assert audit.verify() == (5, [])
    out = io.StringIO()
    call_command("verify_audit", stdout=out)
    assert "5 seals" in out.getvalue()


def test_a_zero_is_sealed_without_a_sign_that_postgresql_would_not_give_back(db):
    audit.record("ada", "kill", "x", **KillSpec.parse({"grace": -0.0}))
    assert str(AuditEntry.objects.get().detail["grace"]) == "0.0"
    assert audit.verify() == (1, [])


def test_an_empty_log_verifies(db):
    assert audit.verify() == (0, [])


def _forge_whole_tail():
    """Somebody with the database but not the key rewrites the last entry and every hash after it."""
    AuditEntry.objects.filter(action="kill").update(actor="eve")
    seal = Seal.objects.get(number=5)
    forged = hashlib.sha256(b"anything").hexdigest()
    Seal.objects.filter(pk=seal.pk).update(hash=forged)
    Chain.objects.update(hash=forged)


def _swap_events():
    first, second = AllocationEvent.objects.filter(seal=4).order_by("id")[:2]
    AllocationEvent.objects.filter(pk=first.pk).update(bytes=second.bytes, waited=second.waited)
    AllocationEvent.objects.filter(pk=second.pk).update(bytes=first.bytes, waited=first.waited)


def _insert_event():
    row = AllocationEvent.objects.filter(seal=4).last()
    row.pk = None
    row.save(force_insert=True)


def _cut_tail():
    AuditEntry.objects.filter(seal=5).delete()
    Seal.objects.filter(number=5).delete()


def _cut_middle():
    AuditEntry.objects.filter(seal=2).delete()
    Seal.objects.filter(number=2).delete()


TAMPERINGS = {
    "a changed actor": lambda: AuditEntry.objects.filter(action="launch").update(actor="bob"),
    "a changed detail": lambda: AuditEntry.objects.filter(action="launch").update(detail={"gpu_memory": 1}),
    "a changed time": lambda: AuditEntry.objects.filter(action="kill").update(at=timezone.now() + timedelta(hours=1)),
    "a changed address": lambda: AuditEntry.objects.filter(action="kill").update(address="10.0.0.1"),
    "a changed size": lambda: AllocationEvent.objects.filter(bytes=7).update(bytes=8),
    "a changed container": lambda: AllocationEvent.objects.filter(bytes=7).update(
        container=make_container(make_user("x"), "x")
    ),
    "a deleted event": lambda: AllocationEvent.objects.filter(bytes=7).delete(),
    "a deleted batch of events": lambda: AllocationEvent.objects.filter(seal=4).delete(),
    "an inserted event": _insert_event,
    "two events swapped": _swap_events,
    "an entry moved to another seal": lambda: AuditEntry.objects.filter(action="kill").update(seal=2),
    "a changed seal": lambda: Seal.objects.filter(number=3).update(at=timezone.now() + timedelta(hours=1)),
    "a missing seal in the middle": _cut_middle,
    "a missing seal at the end": _cut_tail,
    "everything missing": lambda: (AllocationEvent.objects.all().delete(), AuditEntry.objects.all().delete(),
                                   Seal.objects.all().delete()),
    "a forged end": _forge_whole_tail,
    "a chain set back": lambda: Chain.objects.update(number=3, hash=Seal.objects.get(number=3).hash),
    "no chain": lambda: Chain.objects.all().delete(),
    "a changed chain": lambda: Chain.objects.update(number=4),
}  # fmt: skip


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_tampering_is_found(history, tampering):
    TAMPERINGS[tampering]()
    assert faults()
    with pytest.raises(CommandError, match="tampered with or is damaged"):
        call_command("verify_audit", stderr=io.StringIO())


def test_a_new_secret_key_leaves_the_old_seals_valid(history, settings):
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "another"
    audit.record("ada", "kill")
    assert audit.verify() == (6, [])
    settings.SECRET_KEY_FALLBACKS = []
    assert len(faults()) == 5


def test_an_entry_says_from_where(client, gpu):
    client.post("/api/v1/containers/", {"image": "local", "gpu_memory": "9t"}, REMOTE_ADDR="10.1.2.3")
    entry = AuditEntry.objects.get(action="launch-refused")
    assert (entry.actor, entry.address) == ("ada", "10.1.2.3")


def test_sign_ins_and_failures_are_recorded(client, db):
    make_user("bob", password="right")
    for password in ("wrong", "right"):
        client.post("/api/v1/sign-in/", {"username": "bob", "password": password})
    actions = AuditEntry.objects.filter(actor="bob").values_list("action", flat=True)
    assert list(actions) == ["sign-in-failed", "sign-in", "token-made"]


def test_the_admin_reads_it_filtered(history):
    admin = client_for(make_user("root", Role.ADMIN))
    rows = admin.get("/api/v1/audit/", {"actor": "ada"}).json()["results"]
    assert [row["action"] for row in rows] == ["kill", "launch"]
    assert rows[1]["detail"]["gpu_memory"] == GIB


def test_what_happened_to_memory_is_listed_and_filtered(client, history):
    body = client.get("/api/v1/allocations/", {"kind": "accepted", "ordering": "-bytes", "page_size": 3}).json()
    assert body["count"] == 10
    assert [row["bytes"] for row in body["results"]] == [9, 8, 7]
    assert body["results"][0]["gpu"] == "GPU-0"
    assert client.get("/api/v1/allocations/", {"owner": "nobody"}).json()["count"] == 0
    assert client.get("/api/v1/allocations/", {"to": "2020-01-01"}).json()["count"] == 0
    assert client.get("/api/v1/allocations/", {"container": "x"}).status_code == 400


def test_an_end_cut_off_together_with_the_chain_is_found_by_a_hash_noted_before(history):
    out = io.StringIO()
    call_command("verify_audit", stdout=out)
    noted = out.getvalue().split()[-1]
    call_command("verify_audit", known=noted, stdout=out)
    _cut_tail()
    Chain.objects.update(number=4, hash=Seal.objects.get(number=4).hash)
    assert faults() == []
    with pytest.raises(CommandError, match="1 faults"):
        call_command("verify_audit", known=noted, stderr=io.StringIO())
    with pytest.raises(CommandError, match="NUMBER:HASH"):
        call_command("verify_audit", known="x")


def test_verifying_while_rows_are_appended_finds_no_fault(history, monkeypatch):
    """What was appended after the look at the end of the chain is left for the next time."""
    sealed = verifying._sealed

    def and_meanwhile(last, each):
        audit.record("ada", "launch")
        yield from sealed(last, each)

    monkeypatch.setattr(verifying, "_sealed", and_meanwhile)
    assert audit.verify() == (5, [])
    assert audit.verify() == (6, [])
