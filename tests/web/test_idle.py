"""Idle holders and the warnings about them: one notion, the scheduler's; one warning, whoever gives it."""

import re
from datetime import timedelta

import pytest
from django.utils import timezone

from tests.support.machine import GIB, make_container
from tests.support.people import make_user, signed_in
from web.models import AuditEntry, Claim, UsageSample
from web.people.roles import Role
from web.services import warning

pytestmark = pytest.mark.django_db


@pytest.fixture
def held(ada, gpu):
    """Started an hour ago, and the card did nothing for it in the last quarter of one."""
    now = timezone.now()
    container = make_container(ada, "notebook", gpu, started_at=now - timedelta(hours=1))
    Claim.objects.update(used=GIB)
    UsageSample.objects.bulk_create(
        UsageSample(at=now - timedelta(seconds=age), gpu=gpu, container=container, used=GIB, peak=GIB, utilisation=0)
        for age in range(0, 900, 10)
    )
    return container


def page_of(user) -> str:
    return re.sub(r"\s+", " ", signed_in(user).get("/fairness/").content.decode())


def test_the_page_calls_idle_what_the_scheduler_marked_and_nothing_else(ada, held, settings):
    settings.GPUSHARE_IDLE_MINUTES = 30.0
    page = page_of(ada)
    assert "notebook" not in page  # ten minutes are not what the setting says
    assert "No container has held VRAM for 30 minutes while idle" in page
    held.idle_since = timezone.now() - timedelta(minutes=31)
    held.save(update_fields=["idle_since"])
    page = page_of(ada)
    assert "notebook" in page
    assert "31 min" in page


def test_the_page_says_that_nobody_looks(ada, held, settings):
    settings.GPUSHARE_IDLE_MINUTES = 0
    assert "GPUSHARE_IDLE_MINUTES is 0" in page_of(ada)


def test_what_has_ended_is_idle_no_more(ada, held):
    held.idle_since = held.finished_at = timezone.now()
    held.save(update_fields=["idle_since", "finished_at"])
    assert "notebook" not in page_of(ada)


@pytest.mark.parametrize("by", ["boss", "gpushare"])
def test_a_warning_is_the_same_from_a_person_and_from_the_scheduler(ada, held, by):
    if by == "boss":
        assert signed_in(make_user("boss", Role.OPERATOR)).post(f"/containers/{held.pk}/warn/").status_code == 200
    else:
        warning.tell_owner(by, held)
    (entry,) = AuditEntry.objects.filter(action="warn")
    assert (entry.actor, entry.subject, entry.detail) == (by, str(held.pk), {"name": "notebook", "owner": "ada"})
    assert warning.warned(ada) == [held]
    assert "notebook is idle and holds VRAM" in page_of(ada)
    assert warning.warned(make_user("bob")) == []
