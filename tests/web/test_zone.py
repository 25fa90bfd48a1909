"""Pages show one time zone, the reader's, and say which; REST stays in UTC."""

from datetime import UTC, datetime

import pytest
from django.test import Client

from tests.support.machine import make_container
from tests.support.people import make_user, signed_in
from web import audit
from web.models import AuditEntry
from web.people.roles import Role

pytestmark = pytest.mark.django_db

AT = datetime(2026, 1, 15, 22, 30, tzinfo=UTC)  # half past eleven in Berlin


def asker(user, zone) -> Client:
    browser = signed_in(user)
    browser.cookies["zone"] = zone
    return browser


@pytest.mark.parametrize(
    ("zone", "shown", "named"),
    [
        ("Europe/Berlin", "2026-01-15 23:30:00", "Times: Europe/Berlin (UTC+0"),
        ("Asia/Kolkata", "2026-01-16 04:00:00", "Times: Asia/Kolkata (UTC+05:30)"),
        ("", "2026-01-15 22:30:00", "Times: UTC <"),
        ("../../etc/passwd", "2026-01-15 22:30:00", "Times: UTC <"),
        ("Nowhere/Land", "2026-01-15 22:30:00", "Times: UTC <"),
    ],
)
def test_a_time_is_written_in_the_zone_of_the_browser_and_the_zone_is_named(ada, gpu, zone, shown, named):
    made = make_container(ada, "a", gpu, started_at=AT, finished_at=AT, exit_code=0)
    page = " ".join(asker(ada, zone).get(f"/containers/{made.pk}/").content.decode().split())
    assert f"ended <time>{shown}</time>" in page
    assert named in page
    rest = asker(ada, zone).get(f"/api/v1/containers/{made.pk}/").json()
    assert rest["finished_at"].startswith("2026-01-15T22:30:00")
    assert rest["finished_at"].endswith("Z")


def test_a_day_of_the_log_begins_at_the_readers_midnight(db):
    audit.append(entries=[AuditEntry(at=AT.replace(hour=23), actor="ada", action="kill", subject="x", detail={})])
    boss = make_user("boss", Role.ADMIN)
    for zone, day in (("Europe/Berlin", "2026-01-16"), ("", "2026-01-15")):
        page = asker(boss, zone).get("/audit/", {"from": day, "to": day})
        assert len(page.context["rows"]) == 1, zone
