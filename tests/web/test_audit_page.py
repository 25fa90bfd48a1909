"""The audit log's page: found by day, person and name, in pages, and whether it is whole is shown."""

import re
from datetime import timedelta
from html import unescape

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tests.support.eventually import until
from tests.support.machine import make_container
from tests.support.people import client_for, make_user
from web import audit
from web.audit import reading, verified
from web.models import AuditEntry, Verification
from web.people.roles import Role

pytestmark = pytest.mark.django_db


def entry(at, actor="ada", action="kill", subject="", **detail) -> AuditEntry:
    return AuditEntry(at=at, actor=actor, action=action, subject=str(subject), detail=detail)


def shown(page) -> list[tuple[str, str]]:
    return [(row["line"].entry.actor, row["line"].name) for row in page.context["rows"]]


def test_the_newest_come_first_by_the_name_of_what_was_done_to(browser, ada, gpu):
    container = make_container(ada, "train-7", gpu)
    audit.record("ada", "launch", container.pk, image="local")
    audit.record("bob", "policy", "fair")
    content = browser.get("/audit/").content.decode()
    assert content.index("fair") < content.index("train-7")
    assert f'<a href="/containers/{container.pk}/">train-7</a>' in content


def test_entries_are_found_by_person_name_and_day(browser, ada, gpu):
    container = make_container(ada, "train-7", gpu)
    now = timezone.now()
    yesterday = now - timedelta(days=1)
    audit.append(
        entries=[
            entry(yesterday, subject=container.pk),
            entry(now, "bob", subject=container.pk),
            entry(now, "bob", subject="vision"),
        ]
    )
    assert shown(browser.get("/audit/", {"person": "bob"})) == [("bob", "vision"), ("bob", "train-7")]
    assert shown(browser.get("/audit/", {"name": "train-7"})) == [("bob", "train-7"), ("ada", "train-7")]
    assert shown(browser.get("/audit/", {"name": "train-7", "to": f"{yesterday:%Y-%m-%d}"})) == [("ada", "train-7")]
    both = {"name": "train-7", "from": f"{now:%Y-%m-%d}", "to": f"{now:%Y-%m-%d}"}
    assert shown(browser.get("/audit/", both)) == [("bob", "train-7")]
    assert "No entries match" in browser.get("/audit/", {"person": "nobody"}).content.decode()
    rest = client_for(make_user("root", Role.ADMIN))
    assert [each["actor"] for each in rest.get("/api/v1/audit/", {"name": "train-7"}).json()["results"]] == [
        "bob",
        "ada",
    ]


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"from": "yesterday"}, 400),
        ({"to": "0000-00-00"}, 400),
        ({"from": "9999-12-31"}, 400),
        ({"to": "2999-12-31"}, 200),
        ({"before": "9" * 30}, 200),
        ({"before": "-1"}, 200),
        ({"before": "x"}, 200),
        ({"before": "٣"}, 200),
        ({"person": "x" * 5000}, 200),
        ({"name": "☃"}, 200),
        ({"name": "a\0"}, 400),
        ({"from": "2026-02-30"}, 400),
    ],
)
def test_no_question_to_it_is_a_failure(browser, asked, status):
    audit.record("ada", "launch", "x")
    assert browser.get("/audit/", asked).status_code == status


def test_going_back_page_by_page_meets_each_entry_once_even_while_more_come(browser):
    now = timezone.now().replace(microsecond=0)
    audit.append(entries=[entry(now - timedelta(seconds=number // 7), subject=f"s{number}") for number in range(120)])
    seen, query = [], ""
    while True:
        page = browser.get(f"/audit/{query}")
        seen += [name for actor, name in shown(page) if actor == "ada"]
        audit.record("eve", "policy", "meanwhile")
        if not (query := page.context["older"]):
            break
    assert sorted(seen) == sorted(f"s{number}" for number in range(120))
    assert [name for name in seen if name == "s0"] == ["s0"]


def test_a_page_reads_no_more_of_a_long_log_than_it_shows(browser, ada):
    """By index and place: nothing is counted, and nothing skipped over."""
    now = timezone.now()
    audit.append(entries=[entry(now, f"p{number % 9}", subject=f"s{number % 99}") for number in range(3000)])
    oldest = AuditEntry.objects.filter(actor="p3").earliest("id").pk
    for person, before in (("", 100), ("p3", oldest + 500)):
        with CaptureQueriesContext(connection) as asked:
            rows, _ = reading.page(reading.entries(person), 50, before)
        assert len(rows) > 5
        (query,) = [each["sql"] for each in asked if "LIMIT 51" in each["sql"]]
        assert "COUNT" not in query
        assert "OFFSET" not in query
        if connection.vendor == "sqlite":
            with connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN QUERY PLAN {query}")
                plan = " ".join(str(row[-1]) for row in cursor.fetchall())
            assert "USING INDEX" in plan
            assert "TEMP B-TREE" not in plan


def test_details_are_shown_in_bounds_and_as_text(browser):
    audit.record("eve", "launch-refused", "x", environment={"A": "<script>alert(1)</script>" * 500}, note="☃")
    content = browser.get("/audit/").content.decode()
    assert "<script>alert" not in content
    assert "&lt;script&gt;alert" in content
    assert len(content) < 60_000


def test_the_command_keeps_what_it_found():
    assert verified.last() is None
    audit.record("ada", "launch", "x")
    call_command("verify_audit")
    at, ok, sentence = verified.last()
    assert (ok, sentence) == (True, "The audit log is whole: 1 seal holds.")
    assert timezone.now() - at < timedelta(minutes=1)
    AuditEntry.objects.update(actor="bob")
    with pytest.raises(CommandError):
        call_command("verify_audit")
    _, ok, sentence = verified.last()
    assert not ok
    assert "Seal 1" in sentence
    assert "damaged" in sentence


@pytest.mark.django_db(transaction=True)
def test_the_button_verifies_in_the_background_and_the_result_stays(browser):
    audit.record("ada", "launch", "x")
    begun = browser.post("/audit/verify/").content.decode()
    assert "disabled" in begun or "whole" in begun
    until(lambda: verified.under_way() is None and verified.last() is not None)
    assert verified.last()[1]
    assert "The audit log is whole" in browser.get("/audit/").content.decode()
    assert AuditEntry.objects.filter(action="audit-verify", actor="boss").exists()
    AuditEntry.objects.filter(actor="ada").delete()
    rest = client_for(make_user("root", Role.ADMIN))
    assert rest.post("/api/v1/audit/verify/").status_code == 202
    until(lambda: rest.get("/api/v1/audit/verify/").json()["ok"] is False)
    assert re.search(r"Seal \d+", rest.get("/api/v1/audit/verify/").json()["message"])


def test_only_one_verifies_at_a_time_until_it_is_given_up(browser):
    Verification.objects.create(pk=1, started_at=timezone.now())
    assert not verified.start()
    assert "already" in browser.post("/audit/verify/").content.decode() or verified.under_way()
    Verification.objects.update(started_at=timezone.now() - timedelta(seconds=3 * verified.LONGEST))
    assert verified.under_way() is None
    assert "did not finish" in verified.trouble()


def test_a_run_that_ends_ends_no_other_that_is_under_way():
    """The scheduler's own, once a day, and one that was given up and comes to its end all the same."""
    now = timezone.now()
    Verification.objects.create(pk=1, started_at=now)
    call_command("verify_audit")
    assert verified.last()[1]
    assert verified.under_way() == now
    assert not verified.start()
    verified._gave_up(now - timedelta(hours=1), "It was not done.")
    assert (verified.under_way(), verified.trouble()) == (now, "")
    verified.check(60, now)
    assert verified.under_way() is None


def test_what_takes_too_long_ends_and_leaves_the_last_result_as_it_was():
    audit.record("ada", "launch", "x")
    verified.keep(1, [])
    with pytest.raises(verified.TooLong):
        verified.check(-1)
    assert verified.last()[1]


def test_an_anchor_that_cannot_be_read_is_no_whole_log(settings, tmp_path):
    settings.GPUSHARE_HOME = tmp_path
    (tmp_path / "audit-anchor").write_text("nonsense")
    verified.check(60)
    _, ok, sentence = verified.last()
    assert not ok
    assert "damaged" in sentence


def test_a_verification_that_cannot_be_begun_says_so_and_is_over(browser, monkeypatch):
    def refuses(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as host:
        host.setattr("threading.Thread.start", refuses)
        browser.post("/audit/verify/")
    assert verified.under_way() is None
    assert "It could not start: can't start new thread" in unescape(browser.get("/audit/").content.decode())
