"""POST containers/: what is written, what the answer says, and that a refusal leaves nothing behind."""

from datetime import timedelta

import pytest
from django.utils import timezone

from tests.support.machine import GIB, commands_answered, make_container, make_gpu
from tests.support.people import make_user
from web.errors import Problem
from web.models import AuditEntry, Command, Container
from web.services import steering

URL = "/api/v1/containers/"


def refusal(answer) -> tuple[int, str, str]:
    error = answer.json()["error"]
    assert error["message"].strip()
    return answer.status_code, error["code"], error.get("field", "")


@pytest.mark.django_db(transaction=True)
def test_a_launch_answers_201_with_the_container(client, gpu):
    asked = {
        "image": "local",
        "command": ["sleep", "5"],
        "gpu_memory": "2GiB",
        "name": "first",
        "env": {"GREETING": "hello"},
        "priority": 3,
        "on_shortage": "fail",
        "ttl_seconds": 60,
    }
    with commands_answered(message="Started."):
        answer = client.post(URL, asked)
    assert answer.status_code == 201, answer.content
    body = answer.json()
    assert (body["name"], body["owner"], body["state"], body["gpus"]) == ("first", "ada", "created", [])
    assert body["message"] == "Started."
    container = Container.objects.get(pk=body["id"])
    assert container.gpu_memory == 2 * GIB
    assert container.environment == {"GREETING": "hello"}
    assert container.commands.get().kind == Command.Kind.LAUNCH


@pytest.mark.django_db(transaction=True)
def test_the_schedulers_refusal_is_the_answer(client, gpu):
    with commands_answered(
        outcome=Command.Outcome.REFUSED,
        code="unknown_image",
        status=400,
        field="image",
        message="No image of this name.",
    ):
        answer = client.post(URL, {"image": "nothing"})
    assert refusal(answer) == (400, "unknown_image", "image")


@pytest.mark.django_db
def test_a_scheduler_that_takes_long_gives_202_and_where_to_look(client, gpu, monkeypatch):
    monkeypatch.setattr(steering, "wait_for", lambda command: command)
    answer = client.post(URL, {"image": "local"})
    assert answer.status_code == 202
    body = answer.json()
    assert answer["Location"] == body["url"]
    Command.objects.update(message="Fetching local: 1.0 of 3.0 MiB")
    later = client.get(body["url"]).json()
    assert later["message"].startswith("Fetching")
    assert (later["id"], later["done"], later["kind"]) == (body["command"], False, "launch")


@pytest.mark.django_db
def test_a_silent_scheduler_is_503_and_nothing_is_created(client, gpu, node):
    node.seen_at = timezone.now() - timedelta(seconds=6)
    node.save(update_fields=["seen_at"])
    assert refusal(client.post(URL, {"image": "local"})) == (503, "scheduler_away", "")
    assert not Container.objects.exists()
    assert not Command.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"gpu_memory": "6GiB"}, (400, "over_capacity", "gpu_memory")),
        ({"gpus": ["GPU-7"]}, (400, "unknown_gpu", "gpus")),
        ({"gpus": 2}, (400, "too_few_gpus", "gpus")),
        ({"name": "taken"}, (409, "name_taken", "name")),
    ],
)
def test_what_cannot_be_is_refused_before_a_row_is_written(client, gpu, asked, expected):
    make_container(make_user("bob"), "taken")
    assert refusal(client.post(URL, {"image": "local", **asked})) == expected
    assert Container.objects.count() == 1
    assert not Command.objects.exists()
    entry = AuditEntry.objects.get(action="launch-refused")
    assert (entry.actor, entry.detail["code"]) == ("ada", expected[1])


@pytest.mark.django_db
def test_a_capped_card_gives_its_cap_and_not_what_others_hold_beside_it(client, ada, node):
    card = make_gpu(node, capacity=5 * GIB, foreign=10 * GIB)  # of 80 GiB, capped to 5
    message = "is more than it can ever give: the most is 5 GiB."
    answer = client.post(URL, {"image": "local", "gpu_memory": "6GiB"})
    assert refusal(answer) == (400, "over_capacity", "gpu_memory")
    assert message in answer.json()["error"]["message"]
    with pytest.raises(Problem, match=message):
        steering.change(ada, make_container(ada, "a", card), gpu_memory="6GiB")


@pytest.mark.django_db
def test_a_card_that_foreign_memory_has_shrunk_can_still_give_it_one_day(ada, node):
    make_gpu(node, capacity=GIB, most=5 * GIB, foreign=4 * GIB)
    assert steering.launch(ada, {"image": "local", "gpu_memory": "5g"}).container.gpu_memory == 5 * GIB


@pytest.mark.django_db
def test_a_name_is_free_again_once_its_container_ended(ada, gpu):
    make_container(ada, "again", finished_at=timezone.now())
    assert steering.launch(ada, {"image": "local", "name": "again"}).container.name == "again"


@pytest.mark.django_db
def test_a_launch_without_a_name_gets_one(ada, gpu):
    first, second = (steering.launch(ada, {"image": "registry.lab/team/torch:2.1"}).container for _ in range(2))
    assert first.name.startswith("torch-")
    assert first.name != second.name


@pytest.mark.django_db
def test_the_same_key_launches_once(ada, gpu):
    asked = {"image": "local", "gpu_memory": "1g"}
    first = steering.launch(ada, asked, key="k1")
    assert steering.launch(ada, {"image": "local", "gpu_memory": GIB}, key="k1") == first
    assert steering.launch(ada, asked, key="k2") != first
    assert steering.launch(make_user("bob"), asked, key="k1") != first
    with pytest.raises(Problem) as refused:
        steering.launch(ada, {"image": "local"}, key="k1")
    assert (refused.value.status, refused.value.code) == (409, "idempotency_key_reused")


@pytest.mark.django_db
def test_a_refused_launch_frees_its_key(ada, gpu):
    first = steering.launch(ada, {"image": "local"}, key="k1")
    now = timezone.now()
    Command.objects.update(outcome=Command.Outcome.REFUSED, done_at=now)
    Container.objects.update(finished_at=now, removed_at=now)
    assert steering.launch(ada, {"image": "local"}, key="k1") != first


@pytest.mark.django_db
def test_the_values_of_variables_stay_out_of_answers_and_the_audit_log(client, ada, gpu):
    command = steering.launch(ada, {"image": "local", "env": {"API_KEY": "hunter2"}})
    assert "hunter2" not in client.get(f"{URL}{command.container_id}/").content.decode()
    assert "hunter2" not in str(AuditEntry.objects.get(action="launch").detail)


@pytest.mark.django_db
def test_gpus_that_fit_are_chosen_by_the_scheduler(ada, node):
    make_gpu(node, 0)
    make_gpu(node, 1, capacity=8 * GIB)
    assert steering.launch(ada, {"image": "local", "gpu_memory": "7g"}).container.gpu_uuids == []
    assert steering.launch(ada, {"image": "local", "gpus": ["GPU-1"]}).container.gpu_uuids == ["GPU-1"]
