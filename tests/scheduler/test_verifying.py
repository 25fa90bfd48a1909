"""The audit log is verified from time to time without anybody asking, and what was found is kept."""

import asyncio

import pytest
from django.db import connection
from pytest_django import Settings

from scheduler.monitors import verifying as module
from scheduler.monitors.verifying import Verifying
from tests.support.eventually import PATIENCE, eventually
from tests.support.host import Host, host, query
from web import audit
from web.audit import verified
from web.models import AuditEntry, Verification

__all__ = ["host"]


async def test_a_changed_row_is_found_and_reported_until_it_is_as_it_was(
    host: Host, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PERIOD", 0.5)
    monkeypatch.setattr(module, "KINDNESS", 0)  # on a busy machine it would hardly ever have its turn
    name = await query(lambda: str(connection.settings_dict["NAME"]))
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{name}")
    monkeypatch.setenv("GPUSHARE_HOME", str(host.home))
    monkeypatch.setenv("GPUSHARE_SECRET_KEY", settings.SECRET_KEY)
    await query(audit.record, "ada", "launch", "c")
    verifying = asyncio.create_task(Verifying(host.up.store).run())

    async def found(ok: bool) -> Verification:
        async with asyncio.timeout(PATIENCE):
            while True:
                last = await query(verified.last)
                if last and last[1] is ok:
                    return await query(Verification.objects.get)
                await asyncio.sleep(0.1)

    try:
        first = await found(ok=True)
        assert "hold" in first.sentence
        assert first.broken_since is None
        await query(AuditEntry.objects.filter(actor="ada").update, actor="eve")
        broken = await found(ok=False)
        assert "is broken" in broken.sentence
        since = broken.broken_since
        await query(AuditEntry.objects.filter(actor="eve").update, actor="ada")
        assert since is not None
        assert (await found(ok=True)).broken_since is None
    finally:
        verifying.cancel()
        await asyncio.gather(verifying, return_exceptions=True)


async def test_a_verification_that_came_to_no_result_is_tried_again_soon(
    host: Host, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NOT_AT_ONCE", 0.0)
    monkeypatch.setattr(module, "AGAIN", 0.2)
    began: list[str] = []
    ages: list[float] = []
    age = Verifying._age

    async def killed(self: Verifying) -> None:  # by the kernel for want of memory, or by whoever ends the database
        began.append("")
        if len(began) == 3:  # this one is not
            await query(verified.keep, 1, [])

    async def noted(self: Verifying) -> float:
        ages.append(await age(self))
        return ages[-1]

    monkeypatch.setattr(Verifying, "_verify", killed)
    monkeypatch.setattr(Verifying, "_age", noted)
    verifying = asyncio.create_task(Verifying(host.up.store).run())
    try:
        await eventually(lambda: ages and ages[-1] < 24 * 3600)
        await asyncio.sleep(1)
        assert len(began) == 3
    finally:
        verifying.cancel()
        await asyncio.gather(verifying, return_exceptions=True)
