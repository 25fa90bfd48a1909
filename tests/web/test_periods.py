"""One rule for periods: what lies in the future has not happened, and a time that cannot be is refused in words."""

from datetime import timedelta

import pytest
from django.utils import timezone

from tests.support.events import EventKind, append
from tests.support.machine import GIB, make_container
from tests.support.people import client_for, make_user
from web.models import Container
from web.people.roles import Role

pytestmark = pytest.mark.django_db

TIMES = [
    "0001-01-01",
    "0001-01-01T00:00:00+14:00",
    "1999-12-31",
    "9999-12-31",
    "9999-12-31T23:59:59-14:00",
    "12345-01-01",
]
SECONDS = ["-62135596800", "253402300799", "1e300", "nan", "-inf", "9" * 400]


@pytest.fixture
def holder(gpu, ada) -> Container:
    """Holds 2 GiB, for an hour now, and goes on."""
    since = timezone.now() - timedelta(hours=1)
    container = make_container(ada, "train", gpu)
    Container.objects.update(created_at=since)
    append(container, since, EventKind.ACCEPTED, gpu, used_after=2 * GIB)
    return container


def test_nobody_pays_for_the_future(client, browser, holder):
    asked = {"from": "2026-01-01", "to": "2999-01-01"}
    report = client.get("/api/v1/reports/allocations/", asked).json()
    assert report["total"]["vram_gib_hours"] == pytest.approx(2, rel=0.01)
    assert report["to"] < (timezone.now() + timedelta(minutes=1)).isoformat()
    assert browser.get("/reports/", asked).context["total"]["vram_gib_hours"] == pytest.approx(2, rel=0.01)
    csv = client.get("/api/v1/reports/allocations/", {**asked, "format": "csv"})
    assert csv.status_code == 200


def test_a_range_in_the_future_is_empty(client, browser, holder):
    answer = client.get("/api/v1/reports/allocations/", {"from": "2998-01-01", "to": "2999-01-01"})
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "from")
    page = browser.get("/reports/", {"from": "2998-01-01", "to": "2999-01-01"})
    assert (page.status_code, "The range is empty" in page.content.decode()) == (400, True)


@pytest.mark.parametrize("path", ["reports/allocations", "allocations", "audit"])
@pytest.mark.parametrize("edge", ["from", "to"])
@pytest.mark.parametrize("text", TIMES)
def test_rest_refuses_a_time_that_cannot_be(gpu, path, edge, text):
    client = client_for(make_user("root", Role.ADMIN))
    answer = client.get(f"/api/v1/{path}/", {edge: text})
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, edge)


@pytest.mark.parametrize("edge", ["from", "to"])
@pytest.mark.parametrize("text", [*TIMES, "yesterday", "2026-02-30"])
def test_the_page_of_reports_refuses_it_as_well(browser, gpu, edge, text):
    answer = browser.get("/reports/", {edge: text})
    assert answer.status_code == 400
    assert answer.context["error"].startswith(("The year has to be", "This has to be a date"))


@pytest.mark.parametrize("path", ["day/?until=", "moment/?at="])
@pytest.mark.parametrize("text", SECONDS)
def test_the_history_refuses_seconds_that_are_no_time(browser, gpu, path, text):
    answer = browser.get(f"/history/{gpu.uuid}/{path}{text}")
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, path[path.index("?") + 1 : -1])


@pytest.mark.parametrize("path", ["day/", "moment/"])
def test_the_history_without_a_time_is_about_now(browser, holder, gpu, path):
    assert browser.get(f"/history/{gpu.uuid}/{path}").status_code == 200
