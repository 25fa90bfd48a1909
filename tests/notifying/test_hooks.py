"""A webhook is notified of what needs somebody and of its end, each once, in Alertmanager's form and signed."""

import hashlib
import hmac
from datetime import timedelta

import pytest
from django.utils import timezone

from tests.notifying.conftest import SECRET, turn
from web.models import Delivery, Rule

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)


def test_it_is_notified_once_and_once_that_it_is_over(hook, receiver, engine):
    now = timezone.now()
    turn(now)
    assert hook.statuses == []
    engine("Docker does not answer.")
    for seconds in range(0, 60, 5):
        turn(now + timedelta(seconds=seconds))
    assert hook.statuses == [("firing", "engine_away")]
    engine("")
    for seconds in range(60, 180, 5):
        turn(now + timedelta(seconds=seconds))
    assert hook.statuses == [("firing", "engine_away"), ("resolved", "engine_away")]
    assert set(Delivery.objects.values_list("outcome", "error")) == {("sent", "")}


def test_the_form_is_the_one_that_alertmanager_sends(hook, receiver, waiter, settings):
    settings.GPUSHARE_PUBLIC_URL = "https://gpu1.lab"
    made = waiter("train", queue_reason="Needs 1 GiB.")
    turn(timezone.now())
    (heard,) = hook.heard
    body = heard.json
    assert {name: body[name] for name in ("version", "status", "receiver", "groupLabels", "truncatedAlerts")} == {
        "version": "4", "status": "firing", "receiver": "hook", "groupLabels": {"alertname": "GpushareWaiting"},
        "truncatedAlerts": 0,
    }  # fmt: skip
    (alert,) = body["alerts"]
    assert alert["labels"] == body["commonLabels"]
    assert alert["labels"] | {"key": ""} == {
        "alertname": "GpushareWaiting", "severity": "info", "kind": "waiting", "node": settings.GPUSHARE_NODE,
        "person": "ann", "container": "train", "container_id": str(made.pk), "key": "",
    }  # fmt: skip
    assert alert["annotations"]["summary"] == '"train" waits for memory. Needs 1 GiB.'
    assert alert["startsAt"] == made.suspended_since.isoformat().replace("+00:00", "Z")
    assert alert["endsAt"] == "0001-01-01T00:00:00Z"
    assert alert["generatorURL"] == f"https://gpu1.lab/containers/{made.pk}/"
    assert len(alert["fingerprint"]) == 16


def test_the_same_thing_has_the_same_fingerprint_when_it_is_over(hook, receiver, engine):
    now = timezone.now()
    engine("away")
    turn(now)
    engine("")
    turn(now + MINUTE)
    turn(now + 2 * MINUTE)
    fired, resolved = (heard.json["alerts"][0] for heard in hook.heard)
    assert fired["fingerprint"] == resolved["fingerprint"]
    assert fired["startsAt"] == resolved["startsAt"] < resolved["endsAt"]


def test_the_signature_covers_time_id_and_body(hook, receiver, engine):
    engine("away")
    now = timezone.now()
    turn(now)
    (heard,) = hook.heard
    at, digest = (part.split("=")[1] for part in heard.headers["X-Gpushare-Signature"].split(","))
    signed = f"{at}.{heard.id}.".encode() + heard.body
    assert digest == hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert int(at) == int(now.timestamp())


def test_what_comes_and_goes_is_notified_once(hook, receiver, engine):
    now = timezone.now()
    for second in range(0, 120, 5):
        engine("away" if second % 10 else "")
        turn(now + timedelta(seconds=second))
    assert hook.statuses == [("firing", "engine_away")]


def test_a_redirect_is_not_followed(hook, receiver, engine):
    hook.answer, hook.location = 302, f"http://127.0.0.1:{hook.port}/elsewhere"
    engine("away")
    turn(timezone.now())
    assert len(hook.heard) == 1
    assert "Redirects are not followed" in Delivery.objects.get().error


def test_a_rule_that_is_switched_off_says_nothing(hook, receiver, engine):
    Rule.objects.update(enabled=False)
    engine("away")
    turn(timezone.now())
    assert hook.heard == []
