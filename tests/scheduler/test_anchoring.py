"""A running scheduler notes the audit chain's end outside of the database, and tells when it was cut off."""

import pytest
from django.core.management import call_command

from tests.support.host import query
from tests.support.inprocess.host import InProcess
from web import audit
from web.audit import anchor
from web.models import AuditEntry, Chain, Node, Seal


async def test_the_anchor_follows_the_chain_and_stays_when_that_was_cut_off(
    host: InProcess, caplog: pytest.LogCaptureFixture
) -> None:
    async def error() -> str:
        """What the host's record says, which people are shown."""
        return await query(lambda: Node.objects.get().audit_error)

    async def right() -> bool:
        return not await error()

    def record() -> tuple[int, str]:
        audit.record("ada", "launch", "c")
        return audit.head()

    before = await query(record)
    noted = await query(record)
    await host.eventually(lambda: anchor.read() == noted)

    def cut_off() -> None:
        AuditEntry.objects.filter(seal=noted[0]).delete()
        Seal.objects.filter(number=noted[0]).delete()
        Chain.objects.update(number=before[0], hash=before[1])

    await query(cut_off)
    await host.eventually(lambda: f"cut off or replaced: seal {noted[0]}" in caplog.text)
    assert anchor.read() == noted
    assert f"seal {noted[0]}" in await host.eventually(error)
    anchor.path().unlink()
    await host.eventually(lambda: "audit-anchor is gone" in caplog.text)
    await query(call_command, "verify_audit", "--accept")  # whoever runs the host has looked at it
    await host.eventually(right)
