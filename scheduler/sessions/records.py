"""What is written down of decisions: one event for each call's answer, and for use that no message told of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from django.conf import settings

from scheduler.core.events import Granted, Rejected, Suspended
from scheduler.sessions.rejections import RejectionKind, Rejections
from scheduler.sessions.tenants import Session, Tenant


class Journal(Protocol):
    """What is told; `scheduler/store/` writes it down. No call may block."""

    def event(
        self, kind: str, container: str, *, gpu: str = "", pid: int | None = None, size: int = 0,
        used_after: int | None = None, waited: float = 0.0, policy: str = "", detail: str = "",
    ) -> None: ...  # fmt: skip

    def suspended(self, container: str, since: float | None, before: float) -> None:
        """`since`: monotonic, None when it is not suspended any more. `before`: seconds of all ended waits."""


class Records:
    """`policy` tells which one decides now. Sizes are bytes, times seconds."""

    def __init__(self, journal: Journal, policy: Callable[[], str]) -> None:
        self._journal = journal
        self._policy = policy
        self.rejections = Rejections(settings.GPUSHARE_BUDGETS.rejections_seconds, self._rejected_more)

    def granted(self, tenant: Tenant, session: Session, grant: Granted) -> None:
        self._journal.event(
            "resumed" if grant.was_suspended else "accepted",
            tenant.id, gpu=grant.gpu, pid=session.pid, size=grant.bytes,
            used_after=self._note_use(tenant, grant.gpu), waited=grant.waited, policy=self._policy(),
        )  # fmt: skip

    def hung_up(self, tenant: Tenant, grant: Granted) -> None:
        """A wait that was told has ended, although nobody was there to be given the memory."""
        self._journal.event(
            "resumed", tenant.id, gpu=grant.gpu, used_after=self._note_use(tenant, grant.gpu), waited=grant.waited,
            policy=self._policy(), detail="Its process had hung up: what it asked for went back.",
        )  # fmt: skip

    def rejected(self, tenant: Tenant, session: Session, rejection: Rejected, now: float) -> None:
        kind = RejectionKind(tenant.id, rejection.gpu, rejection.reason.value)
        if not rejection.was_suspended and self.rejections.count(kind, rejection.bytes, now):
            return  # a wait that ends is always told
        self._journal.event(
            "rejected", tenant.id, gpu=rejection.gpu, pid=session.pid, size=rejection.bytes,
            used_after=self._note_use(tenant, rejection.gpu),
            waited=rejection.waited if rejection.was_suspended else 0.0,
            policy=self._policy(), detail=rejection.reason.value,
        )  # fmt: skip

    def _rejected_more(self, kind: RejectionKind, count: int, largest: int) -> None:
        self._journal.event(
            "rejected", kind.container, gpu=kind.gpu, size=largest, policy=self._policy(),
            detail=f"{kind.reason}: {count} more such calls in {self.rejections.period:.0f} s, this the largest.",
        )  # fmt: skip

    def suspended(self, tenant: Tenant, session: Session, effect: Suspended, waited: float) -> None:
        """`waited`: more than 0 for a wait that goes on from the last scheduler's time."""
        self._journal.event(
            "suspended", tenant.id, gpu=effect.gpu, pid=session.pid, size=effect.bytes,
            used_after=self._note_use(tenant, effect.gpu), waited=waited, policy=self._policy(),
        )  # fmt: skip

    def not_asked_again(self, tenant: Tenant, waited: float) -> None:
        """Whatever waited under the last scheduler does not any more."""
        self._journal.event(
            "resumed", tenant.id, waited=waited, policy=self._policy(),
            detail="The scheduler was restarted, and no call of it waits any more.",
        )  # fmt: skip

    def is_suspended(self, tenant: Tenant) -> None:
        self._journal.suspended(tenant.id, tenant.suspended_since, tenant.suspended_before)

    def card_full(self, tenant: Tenant, session: Session, gpu: str, size: int) -> None:
        """The card itself had no memory for `size` bytes inside the lease."""
        self._journal.event(
            "card_full", tenant.id, gpu=gpu, pid=session.pid, size=size, used_after=self._note_use(tenant, gpu),
            detail=f"The card had no memory inside a lease ({session.physical} times): something else is on it.",
        )  # fmt: skip

    def use(self, tenant: Tenant, gpu: str, *, pid: int | None = None) -> None:
        """What the container uses more or less than by its last event: inside leases nobody tells."""
        before = tenant.told.get(gpu, 0)
        used = self._note_use(tenant, gpu)
        if used != before:
            kind = "accepted" if used > before else "freed"
            self._journal.event(
                kind, tenant.id, gpu=gpu, pid=pid, size=abs(used - before), used_after=used, policy=self._policy(),
            )  # fmt: skip

    def _note_use(self, tenant: Tenant, gpu: str) -> int:
        tenant.told[gpu] = tenant.note_peak(gpu)
        return tenant.told[gpu]
