"""How containers share a GPU's time: what an admin asks of the scheduler, and what is shown of it."""

import pytest

from tests.support.machine import commands_answered, make_container
from tests.support.people import client_for, make_user
from web.models import AuditEntry, Claim, Command, Gpu
from web.people.roles import Role

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin(db):
    return client_for(make_user("root", Role.ADMIN))


@pytest.mark.django_db(transaction=True)
def test_an_admin_says_how_a_gpu_is_shared(admin, gpu):
    with commands_answered(message="Containers take turns on it."):
        answer = admin.patch("/api/v1/gpus/GPU-0/", {"compute": "turns"}, format="json")
    assert (answer.status_code, answer.json()["message"]) == (200, "Containers take turns on it.")
    command = Command.objects.get(kind="compute")
    assert command.arguments == {"gpu": "GPU-0", "compute": "turns"}
    entry = AuditEntry.objects.get(action="compute")
    assert (entry.subject, entry.detail["compute"]) == ("GPU-0", "turns")


@pytest.mark.parametrize(
    ("uuid", "body", "status", "code"),
    [
        ("GPU-0", {"compute": "fast"}, 400, "invalid"),
        ("GPU-0", {}, 400, "required"),
        ("GPU-0", {"compute": "turns", "cycle": 1}, 400, "unknown_field"),
        ("GPU-9", {"compute": "turns"}, 404, "not_found"),
    ],
)
def test_what_makes_no_sense_is_refused(admin, gpu, uuid, body, status, code):
    answer = admin.patch(f"/api/v1/gpus/{uuid}/", body, format="json")
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert not Command.objects.exists()


def test_a_gpu_that_is_gone_cannot_be_shared_otherwise(admin, gpu):
    Gpu.objects.update(present=False)
    answer = admin.patch("/api/v1/gpus/GPU-0/", {"compute": "turns"}, format="json")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "gpu_gone")


def test_rest_tells_what_a_gpu_is_shared_by_and_what_each_had(client, ada, gpu):
    Gpu.objects.update(compute="turns", compute_why="The driver can stop programs.")
    made = make_container(ada, "a", gpu)
    Claim.objects.update(had=90.5, due=100.0, held_back=31.0, had_lately=15.0, due_lately=15.5, held_back_lately=45.0)
    card = client.get("/api/v1/gpus/GPU-0/").json()
    assert (card["compute"], card["compute_asked"], card["compute_why"]) == (
        "turns",
        "",
        "The driver can stop programs.",
    )
    (claim,) = client.get(f"/api/v1/containers/{made.pk}/").json()["gpus"]
    assert [claim[name] for name in ("had", "due", "held_back", "had_lately", "due_lately", "held_back_lately")] == [
        90.5, 100.0, 31.0, 15.0, 15.5, 45.0,
    ]  # fmt: skip
