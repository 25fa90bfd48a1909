"""forecast/: the scheduler is asked, and what it says is passed on."""

from datetime import timedelta

import pytest
from django.utils import timezone

from tests.support.machine import GIB, commands_answered, make_container, make_gpu
from tests.support.people import signed_in
from web.models import Allowance, Announcement, AuditEntry, Command
from web.services import steering

URL = "/api/v1/forecast/"
pytestmark = pytest.mark.django_db(transaction=True)


def test_the_answer_is_the_schedulers(client, gpu):
    found = {
        "fits": False,
        "behind": ["6f0f0a7e-0000-4000-8000-000000000000"],
        "earliest": 12.5,
        "message": "Behind a.",
    }
    with commands_answered(result=found):
        assert client.get(URL, {"gpu_memory": "2GiB", "gpus": "1"}).json() == {
            **found,
            "node": "host",
            "node_reason": "",
        }
    assert not Command.objects.exists()  # a question leaves no trace
    assert not AuditEntry.objects.filter(action="forecast").exists()


def test_what_is_asked(ada, gpu):
    command = steering.forecast(ada, gpu_memory=2 * GIB, priority=3, ttl_seconds=60)
    assert command.arguments == {"gpu_memory": 2 * GIB, "gpus": 1, "priority": 3, "owner": "ada", "ttl_seconds": 60,
                                 "reason": ""}  # fmt: skip


@pytest.mark.parametrize(("limit", "said"), [({}, True), ({"ttl_seconds": 7200}, True), ({"ttl_seconds": 600}, False)])
def test_what_begins_after_its_time_limit_is_not_announced(client, ada, gpu, limit, said):
    now = timezone.now()
    begins, ends = now + timedelta(hours=1), now + timedelta(hours=2)
    Announcement.objects.create(message="fans", made_by="ada", begins_at=begins, ends_at=ends)
    with commands_answered(result={"fits": True, "behind": [], "earliest": 0, "message": "Fits now."}):
        answer = client.get(URL, {"gpu_memory": "2g", **limit}).json()
        page = signed_in(ada).post("/launch/forecast/", {"gpu_memory": "2g", **limit}).json()
    assert ("fans" in answer["message"]) is ("fans" in page["text"]) is said


@pytest.mark.parametrize("limit", ["0", "-1", "nan", "1e400", "9" * 400, "soon"])
def test_a_time_limit_that_makes_no_sense_is_refused_or_passed_over(client, ada, gpu, limit):
    with commands_answered(result={"fits": True, "behind": [], "earliest": 0, "message": "Fits now."}):
        assert client.get(URL, {"gpu_memory": "2g", "ttl_seconds": limit}).status_code == 400
        page = signed_in(ada).post("/launch/forecast/", {"gpu_memory": "2g", "ttl_seconds": limit})
    assert page.json() in ({}, {"text": "Fits now."})


@pytest.mark.parametrize(
    ("allowance", "query", "field", "message"),
    [
        ({"gpu_memory": GIB}, {"gpu_memory": "2g"}, "gpu_memory", "together may be at most 1 GiB"),
        ({"priority_highest": 0}, {"gpu_memory": "1g", "priority": "5"}, "priority", "at most 0"),
        ({"containers": 0}, {"gpu_memory": "1g"}, "", "may have no containers"),
        ({"gib_hours": 0}, {"gpu_memory": "1g"}, "", "may hold 0"),
        ({"gpus": ["GPU-0"]}, {"gpu_memory": "1g", "gpus": "2"}, "gpus", "there is 1"),
        ({}, {"gpu_memory": "6g"}, "gpu_memory", "the most is 5 GiB"),
    ],
)
def test_what_a_launch_would_be_refused_for_fits_at_no_time(client, ada, gpu, node, allowance, query, field, message):
    make_gpu(node, 1)
    Allowance.objects.create(user=ada, **allowance)
    with commands_answered(result={"fits": True, "behind": [], "earliest": 0, "message": "Fits now."}):
        error = client.get(URL, query).json()["error"]
    assert (error.get("field", ""), message in error["message"]) == (field, True), error
    assert not Command.objects.exists()


def test_where_gpus_are_limited_it_is_asked_of_the_gpu_that_a_launch_would_get(ada, gpu, node):
    second, third = make_gpu(node, 1, capacity=80 * GIB), make_gpu(node, 2, capacity=10 * GIB)
    make_container(ada, "a", second, quota=60 * GIB)
    make_container(ada, "b", third, quota=1 * GIB)
    Allowance.objects.create(user=ada, gpus=["GPU-1", "GPU-2"])
    asked = steering.forecast(ada, gpu_memory=2 * GIB).arguments["gpus"]
    assert asked == steering.launch(ada, {"image": "local", "gpu_memory": 2 * GIB}).container.gpu_uuids == ["GPU-1"]


@pytest.mark.parametrize(("query", "field"), [({}, "gpu_memory"), ({"gpu_memory": "0"}, "gpu_memory"),
                                              ({"gpu_memory": "1g", "gpus": "0"}, "gpus")])  # fmt: skip
def test_a_question_that_makes_no_sense_is_refused(client, gpu, query, field):
    answer = client.get(URL, query)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)


def test_a_refusal_is_passed_on(client, gpu):
    with commands_answered(outcome=Command.Outcome.REFUSED, code="over_capacity", status=400, message="Too much."):
        assert client.get(URL, {"gpu_memory": "2g"}).json()["error"]["code"] == "over_capacity"
    assert not Command.objects.exists()


def test_the_form_shows_a_refusal_as_one_and_what_is_foreseen_as_it_is_answered(ada, gpu):
    browser = signed_in(ada)
    with commands_answered(outcome=Command.Outcome.REFUSED, code="over_capacity", status=400, message="Too much."):
        assert browser.post("/launch/forecast/", {"gpu_memory": "2g"}).json() == {"text": "Too much.", "bad": True}
    with commands_answered(result={"fits": True, "message": "Fits now."}):
        assert browser.post("/launch/forecast/", {"gpu_memory": "2g"}).json() == {"text": "Fits now."}
    assert browser.post("/launch/forecast/", {"gpu_memory": "many"}).json() == {}
    assert not Command.objects.exists()
