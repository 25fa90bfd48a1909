"""What an admin changes while another one removes it: refused in a sentence, and the log tells nothing of it."""

import pytest

from tests.notifying.conftest import SECRET
from tests.support.people import client_for, make_user
from web.models import AuditEntry, Delivery, Receiver, Rule
from web.people.roles import Role
from web.services import notifying

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def boss():
    return make_user("boss", Role.ADMIN)


@pytest.fixture
def rest(boss):
    return client_for(boss)


@pytest.fixture
def receiver() -> Receiver:
    return Receiver.objects.create(name="lab", kind="webhook", url="https://hooks.lab/x", secret=SECRET)


@pytest.fixture
def removed_meanwhile(monkeypatch):
    """Just after it was found."""
    find = notifying.find

    def and_remove(user, model, pk):
        found = find(user, model, pk)
        model.objects.filter(pk=pk).delete()
        return found

    return lambda: monkeypatch.setattr(notifying, "find", and_remove)


def gone(answer, what: str) -> None:
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert answer.json()["error"]["message"] == f"There is no such {what}; it may have been removed."
    assert not AuditEntry.objects.filter(action__startswith=what).exists()


def test_a_rule(rest, receiver, removed_meanwhile):
    place = f"/api/v1/notifying/rules/{Rule.objects.create(receiver=receiver).pk}/"
    removed_meanwhile()
    gone(rest.patch(place, {"minutes": 5}), "rule")


def test_a_receiver(rest, receiver, removed_meanwhile):
    place = f"/api/v1/notifying/receivers/{receiver.pk}/"
    removed_meanwhile()
    gone(rest.patch(place, {"url": "https://hooks.lab/y"}), "receiver")


def test_a_receiver_that_is_tried(rest, receiver, removed_meanwhile):
    place = f"/api/v1/notifying/receivers/{receiver.pk}/test/"
    removed_meanwhile()
    gone(rest.post(place), "receiver")
    assert not Delivery.objects.exists()


def test_what_another_one_removes_as_well(rest, receiver, removed_meanwhile):
    place = f"/api/v1/notifying/receivers/{receiver.pk}/"
    removed_meanwhile()
    gone(rest.delete(place), "receiver")


@pytest.mark.parametrize("method", ["post", "patch"])
def test_the_receiver_of_a_rule(rest, receiver, monkeypatch, method):
    other = Receiver.objects.create(name="other", kind="webhook", url="https://hooks.lab/z", secret=SECRET)
    place = "/api/v1/notifying/rules/"
    if method == "patch":
        place += f"{Rule.objects.create(receiver=other).pk}/"
    found = notifying._found

    def and_remove(asked):
        fields = found(asked)
        Receiver.objects.filter(pk=receiver.pk).delete()
        return fields

    monkeypatch.setattr(notifying, "_found", and_remove)
    answer = getattr(rest, method)(place, {"receiver": "lab"})
    error = {"code": "invalid", "message": 'There is no receiver "lab".', "field": "receiver"}
    assert (answer.status_code, answer.json()["error"]) == (400, error)
    assert not AuditEntry.objects.filter(action__startswith="rule").exists()
