"""forecast/: the scheduler is asked, and what it says is passed on."""

import pytest

from tests.support.machine import GIB, commands_answered
from web.models import AuditEntry, Command
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
        assert client.get(URL, {"gpu_memory": "2GiB", "gpus": "1"}).json() == found
    assert not Command.objects.exists()  # a question leaves no trace
    assert not AuditEntry.objects.filter(action="forecast").exists()


def test_what_is_asked(ada, gpu):
    command = steering.forecast(ada, gpu_memory=2 * GIB, priority=3)
    assert command.arguments == {"gpu_memory": 2 * GIB, "gpus": 1, "priority": 3, "owner": "ada"}


@pytest.mark.parametrize(("query", "field"), [({}, "gpu_memory"), ({"gpu_memory": "0"}, "gpu_memory"),
                                              ({"gpu_memory": "1g", "gpus": "0"}, "gpus")])  # fmt: skip
def test_a_question_that_makes_no_sense_is_refused(client, gpu, query, field):
    answer = client.get(URL, query)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)


def test_a_refusal_is_passed_on(client, gpu):
    with commands_answered(outcome=Command.Outcome.REFUSED, code="over_capacity", status=400, message="Too much."):
        assert client.get(URL, {"gpu_memory": "2g"}).json()["error"]["code"] == "over_capacity"
    assert not Command.objects.exists()
