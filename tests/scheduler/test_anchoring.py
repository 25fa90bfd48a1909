"""A running scheduler notes the audit chain's end outside of the database, and tells when it was cut off."""

from __future__ import annotations

import asyncio

import pytest
from django.core.management import call_command

from scheduler.monitors import anchoring
from scheduler.parts import PERIODS
from tests.support.eventually import PATIENCE, eventually
from tests.support.host import Host, host, query
from web import audit
from web.audit import anchor
from web.models import AuditEntry, Chain, Node, Seal

__all__ = ["host"]


async def told(*, wrong: bool) -> str:
    """What the host's record says, from which people are told, once something is wrong or nothing is."""
    async with asyncio.timeout(PATIENCE):
        while True:
            said = await query(lambda: Node.objects.get().audit_error)
            if bool(said) is wrong:
                return said
            await asyncio.sleep(0.02)


async def test_the_anchor_follows_the_chain_and_stays_when_that_was_cut_off(
    host: Host, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PERIODS, "audit anchor", 0.05)
    monkeypatch.setattr(anchoring, "TOLD_EVERY", 0.05)

    def record() -> tuple[int, str]:
        audit.record("ada", "launch", "c")
        return audit.head()

    before = await query(record)
    noted = await query(record)
    await eventually(lambda: anchor.read() == noted)

    def cut_off() -> None:
        AuditEntry.objects.filter(seal=noted[0]).delete()
        Seal.objects.filter(number=noted[0]).delete()
        Chain.objects.update(number=before[0], hash=before[1])

    await query(cut_off)
    await eventually(lambda: f"cut off or replaced: seal {noted[0]}" in caplog.text)
    assert anchor.read() == noted
    assert f"seal {noted[0]}" in await told(wrong=True)
    anchor.path().unlink()
    await eventually(lambda: "audit-anchor is gone" in caplog.text)
    await query(call_command, "verify_audit", "--accept")  # whoever runs the host has looked at it
    await told(wrong=False)
