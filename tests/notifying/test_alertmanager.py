"""A real Alertmanager takes what is sent, shows it while it goes on, and knows when it is over."""

import shutil
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from django.utils import timezone

from tests.notifying.conftest import turn
from tests.support.eventually import PATIENCE, until
from tests.support.ports import free_port
from web.models import Delivery, Receiver, Rule

PROGRAM = shutil.which("prometheus-alertmanager")

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(PROGRAM is None, reason="needs Debian's prometheus-alertmanager"),
]


@pytest.fixture
def alertmanager(tmp_path: Path) -> Iterator[str]:
    """Its address. It sends nothing on."""
    config = tmp_path / "alertmanager.yml"
    config.write_text("route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")
    port = free_port()
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(
            [str(PROGRAM), f"--config.file={config}", f"--storage.path={tmp_path / 'data'}",
             "--cluster.listen-address=", f"--web.listen-address=127.0.0.1:{port}"],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        url = f"http://127.0.0.1:{port}"
        until(lambda: process.poll() is None and is_ready(url))
        yield url
    finally:
        process.terminate()
        process.wait(60)


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready", timeout=PATIENCE).is_success
    except httpx.HTTPError:
        return False


def shown(url: str) -> list[tuple[str, str]]:
    """Name and summary of what goes on, as it tells it."""
    alerts = httpx.get(f"{url}/api/v2/alerts", timeout=PATIENCE).raise_for_status().json()
    return sorted((alert["labels"]["alertname"], alert["annotations"]["summary"]) for alert in alerts)


def test_it_shows_what_goes_on_and_no_more_what_is_over(alertmanager, engine, waiter):
    receiver = Receiver.objects.create(name="am", kind=Receiver.Kind.ALERTMANAGER, url=f"{alertmanager}/")
    Rule.objects.create(receiver=receiver)
    engine('Docker does not answer. "quoted", ünïcode')
    waiter("train", queue_reason="Needs 1 GiB.")
    now = timezone.now()
    turn(now)
    assert set(Delivery.objects.values_list("outcome", "error")) == {("sent", "")}
    both = [
        ("GpushareEngineAway", 'Docker does not answer. "quoted", ünïcode'),
        ("GpushareWaiting", '"train" waits for memory. Needs 1 GiB.'),
    ]
    until(lambda: shown(alertmanager) == both)
    (alerts,) = httpx.get(f"{alertmanager}/api/v2/alerts?filter=kind=waiting", timeout=PATIENCE).json()
    assert timezone.datetime.fromisoformat(alerts["endsAt"]) > now + timedelta(hours=23)

    engine("")
    turn(now)
    turn(now + timedelta(minutes=1))
    assert Delivery.objects.get(phase="resolved").outcome == "sent"
    until(lambda: shown(alertmanager) == both[1:])


def test_what_lasts_is_sent_again_before_it_would_be_forgotten(alertmanager, engine):
    receiver = Receiver.objects.create(name="am", kind=Receiver.Kind.ALERTMANAGER, url=alertmanager)
    Rule.objects.create(receiver=receiver)
    engine("away")
    now = timezone.now()
    for hours in range(15):
        turn(now + timedelta(hours=hours))
    assert list(Delivery.objects.order_by("round").values_list("round", "outcome")) == [
        (0, "sent"), (1, "sent"), (2, "sent"),
    ]  # fmt: skip


def test_what_it_refuses_is_reported_in_its_own_words(alertmanager, engine):
    receiver = Receiver.objects.create(name="am", kind=Receiver.Kind.ALERTMANAGER, url=f"{alertmanager}/nowhere")
    Rule.objects.create(receiver=receiver)
    engine("away")
    turn(timezone.now())
    assert "It answered 404" in Delivery.objects.get().error
