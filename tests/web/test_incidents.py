"""What broke last night: every end, wait, move, error of a card, restart and attention, whatever became of it since."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from tests.support import rows
from tests.support.events import EventKind, append
from tests.support.people import signed_in
from tests.support.site import person
from web.models import Container, Episode, Node

pytestmark = pytest.mark.django_db
NIGHT = timezone.now().replace(microsecond=0) - timedelta(days=3)


@pytest.fixture
def card():
    Node.objects.update_or_create(name=rows.gpu().node.name, defaults={"started_at": NIGHT})
    return rows.gpu()


@pytest.fixture
def night(card):
    """Of ada a failure that was removed since, a kill and a good end; of bob a wait and a move on another card."""
    ada, bob, other = person("ada"), person("bob"), rows.gpu(1)

    def ended(name, owner=ada, on=card, **fields):
        times = {"started_at": NIGHT - timedelta(minutes=3), "finished_at": NIGHT}
        made = rows.container(name, owner, on, **{**times, **fields})
        Container.objects.filter(pk=made.pk).update(created_at=NIGHT - timedelta(hours=1))
        return made

    ended("fails", exit_code=137, reason="Out of host memory.", removed_at=NIGHT)
    ended("refused", exit_code=None, started_at=None, removed_at=NIGHT, reason="No such image.")
    ended("killed", exit_code=143, kill_requested_at=NIGHT, reason="Killed by op: night shift.")
    ended("good", exit_code=0)
    waits = ended("waits", bob, other, exit_code=0)
    append(waits, NIGHT - timedelta(minutes=50), EventKind.SUSPENDED, other, bytes=1 << 30)
    append(waits, NIGHT - timedelta(minutes=30), EventKind.RESUMED, other, bytes=1 << 30, waited=1200)
    append(waits, NIGHT - timedelta(minutes=20), EventKind.SWAPPED_OUT, other, bytes=2 << 30)
    times = {"began_at": NIGHT - timedelta(minutes=9), "ended_at": NIGHT}
    Episode.objects.create(key="xid:0", kind="xid", gpu=card.uuid, message="GPU 0 reported XID 79.", **times)
    Episode.objects.create(key="holding:1", kind="holding", person="bob", container="gone",
                           message='"gone" is idle.', **times)  # fmt: skip


def page(**asked):
    browser = signed_in(person("ada"))
    until = int((NIGHT + timedelta(hours=1)).timestamp())
    return browser.get("/incidents/", {"until": until, **asked})


def rows_of(answer):
    return {(row["each"].label, row["each"].container.name if row["each"].container else row["each"].name)
            for row in answer.context["rows"]}  # fmt: skip


ALL = {("Failed", "fails"), ("Failed", "refused"), ("Killed", "killed"), ("Waited", "waits"), ("Moved", "waits"),
       ("Card", ""), ("Restart", ""), ("Attention", "gone")}  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, ALL),
        ({"kind": "failed"}, {("Failed", "fails"), ("Failed", "refused")}),
        ({"kind": "exited"}, {("Ended well", "good"), ("Ended well", "waits")}),
        ({"person": "bob"}, {("Waited", "waits"), ("Moved", "waits"), ("Attention", "gone")}),
        ({"gpu": "GPU-sim-0", "kind": "card"}, {("Card", "")}),
        ({"gpu": "GPU-sim-1"}, {("Waited", "waits"), ("Moved", "waits")}),
        ({"kind": "nonsense", "gpu": "nonsense"}, ALL),
        ({"until": 4}, set()),
    ],
)
def test_a_night_is_shown_whole_and_filtered(night, asked, found):
    answer = page(**asked)
    assert answer.status_code == 200
    if asked.get("until"):
        assert not {row for row in rows_of(answer) if row[0] != "Restart"} & ALL
    else:
        assert rows_of(answer) == found


def test_an_end_tells_exit_code_length_and_reason_and_where_its_last_lines_are(night):
    text = page().content.decode()
    assert "Exit code 137. Ran 3 min. Out of host memory." in text
    assert "Did not start. No such image." in text
    failed = Container.objects.get(name="fails")
    assert f'data-lines="/containers/{failed.pk}/log/?last"' in text
    browser = signed_in(person("eve", "viewer"))
    assert "data-lines" not in browser.get("/incidents/?hours=168").content.decode()  # output is its owner's


def test_its_address_stays_the_same_night_for_whom_it_is_sent_to(night):
    browser = signed_in(person("ada"))
    now = browser.get("/incidents/?hours=168&person=ada")
    assert ("Failed", "fails") in rows_of(now)
    assert rows_of(browser.get(now.context["link"])) == rows_of(now)
    assert "until=" in now.context["link"]


def test_a_failed_run_is_found_by_the_filter_of_the_table_with_end_and_exit_code(night):
    browser = signed_in(person("ada"))
    rows_ = browser.get("/containers/rows/?state=failed").content.decode()
    assert ">fails</a>" in rows_  # it was removed since
    assert "exit code 137" in rows_
    assert f"{NIGHT:%Y-%m-%d %H:%M}" in rows_
    assert ">fails</a>" not in browser.get("/containers/rows/?state=all").content.decode()


def test_a_card_out_of_service_is_one_incident_and_what_is_announced_is_none(night, card):
    times = {"began_at": NIGHT - timedelta(minutes=9), "ended_at": NIGHT}
    Episode.objects.create(key="drained:0", kind="drained", gpu=card.uuid, message="Out of service.", **times)
    Episode.objects.create(key="announced:1", kind="announced", message="New driver.", **times)
    for number in range(3):
        Episode.objects.create(key=f"drained:c{number}", kind="drained", person="bob", container=f"on-it-{number}",
                               container_id=str(uuid4()), message="Runs there.", **times)  # fmt: skip
    texts = [row["each"].text for row in page().context["rows"]]
    assert texts.count("Out of service.") == 1
    assert "Runs there." not in texts
    assert "New driver." not in texts
    assert ("Card", "") in rows_of(page(kind="card"))
    theirs = [row["each"] for row in page(person="bob").context["rows"] if row["each"].text == "Runs there."]
    assert sorted(each.name for each in theirs) == ["on-it-0", "on-it-1", "on-it-2"]


def test_the_last_lines_of_the_first_failures_are_there_without_a_click(night):
    opened = [row["each"].container.name for row in page().context["rows"] if row["opened"]]
    assert sorted(opened) == ["fails", "refused"]


def test_a_wait_that_is_not_over_has_no_end(night, card):
    waits = rows.container("still", person("bob"), card, suspended_since=rows.ago(120))
    append(waits, rows.ago(120), EventKind.SUSPENDED, card, bytes=1 << 30)
    (found,) = [row["each"] for row in signed_in(person("bob")).get("/incidents/?kind=waited").context["rows"]]
    assert found.until is None
    assert found.text.startswith("Waits for memory, ")
