"""/metrics: what is exported, in Prometheus' words, and to whom."""

import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from scheduler.engines.base import EngineAway, EngineError
from scheduler.figures import Figures
from tests.support.machine import GIB, make_container, make_gpu, make_node
from tests.support.people import make_user
from web.models import Claim, Node, Scope
from web.people import tokens
from web.people.roles import Role

pytestmark = pytest.mark.django_db
ROOT = Path(__file__).parents[2]
NOTHING = {"turns": 0, "events_written": 0, "events_behind": 0, "rows_behind": 0, "samples_behind": 0}


@pytest.fixture
def scrape():
    _, key = tokens.make(make_user("prometheus", Role.VIEWER), scope=Scope.READ)

    def scraped():
        """Name of a sample → its labels and values."""
        answer = Client().get("/metrics", headers={"authorization": f"Token {key}"})
        assert answer.status_code == 200, answer.content
        assert answer["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        found = {}
        for family in text_string_to_metric_families(answer.content.decode()):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return found

    return scraped


def test_a_container_is_reported_with_its_owner_and_its_card(scrape, ada, node, gpu):
    made = make_container(ada, 'so "called"', gpu, node=node, suspended_seconds=5.0,
                          suspended_since=timezone.now() - timedelta(seconds=100))  # fmt: skip
    Claim.objects.update(quota=3 * GIB, granted=2 * GIB, used=GIB, peak=GIB + 1, waiting=GIB, had=12.5)
    found = scrape()
    own = {"node": "host", "container": 'so "called"', "owner": "ada"}
    of_claim = {**own, "gpu": "GPU-0"}
    for name, value in {"quota": 3 * GIB, "granted": 2 * GIB, "used": GIB, "peak": GIB + 1}.items():
        assert found[f"gpushare_container_memory_{name}_bytes"] == [(of_claim, value)]
    ((labels, seconds),) = found["gpushare_container_suspended_seconds_total"]
    assert labels == own
    assert 105 <= seconds < 165
    assert found["gpushare_container_compute_seconds_total"] == [(of_claim, 12.5)]
    assert "gpushare_container_compute_due_seconds_total" not in found, "no turns are taken"
    assert found["gpushare_container_info"] == [({**own, "id": str(made.pk), "image": "local"}, 1)]
    assert found["gpushare_queue_length"] == [({"node": "host"}, 1)]
    assert ({"node": "host", "state": "suspended"}, 1) in found["gpushare_containers"]
    assert found["gpushare_gpu_memory_waiting_bytes"] == [({"node": "host", "gpu": "GPU-0"}, GIB)]


def test_a_card_is_shown_in_base_units(scrape, node):
    make_gpu(node, foreign=7, real=9, utilisation=40, temperature=51, power=None)
    make_gpu(node, index=1, present=False)
    found, card = scrape(), {"node": "host", "gpu": "GPU-0"}
    expected = {"memory_capacity_bytes": 5 * GIB, "memory_foreign_bytes": 7, "memory_real_bytes": 9,
                "memory_charged_bytes": 0, "memory_unexplained_bytes": 0, "temperature_celsius": 51}  # fmt: skip
    for name, value in expected.items():
        assert found[f"gpushare_gpu_{name}"] == [(card, value)]
    assert found["gpushare_gpu_utilisation_ratio"] == [(card, pytest.approx(0.4))]
    assert "gpushare_gpu_power_watts" not in found, "what the card does not tell is not exported"


def test_an_ended_container_has_no_series_and_no_label_is_a_process(scrape, ada, node, gpu):
    make_container(ada, "over", gpu, node=node, finished_at=timezone.now(), exit_code=0)
    make_container(ada, "lives", gpu, node=node)
    Claim.objects.update(processes=[{"pid": 4711, "used": 1, "real": 1, "uncapped": False}])
    found = scrape()
    labels = [labels for name, samples in found.items() if "container" in name for labels, _ in samples]
    assert {each["container"] for each in labels if "container" in each} == {"lives"}
    assert not any("pid" in each or "4711" in each.values() for each in labels)


def test_a_silent_scheduler_is_down_and_its_figures_stay(scrape):
    figures = Figures()
    figures.event("resumed", 2.0)
    figures.event("swapped_out", 0.0)
    make_node(
        seen_at=timezone.now() - timedelta(minutes=1),
        figures=figures.as_dict(**NOTHING | {"events_written": 2, "turns": 7}),
    )
    found, node = scrape(), {"node": "host"}
    assert found["gpushare_scheduler_up"] == [(node, 0)]
    assert found["gpushare_wait_seconds_count"] == [(node, 1)]
    assert found["gpushare_wait_seconds_sum"] == [(node, 2.0)]
    at_most = {labels["le"]: value for labels, value in found["gpushare_wait_seconds_bucket"]}
    assert (at_most["1.0"], at_most["5.0"], at_most["+Inf"]) == (0, 1, 1)
    assert found["gpushare_swaps_total"] == [({**node, "direction": "out"}, 1), ({**node, "direction": "in"}, 0)]
    assert found["gpushare_events_written_total"] == [(node, 2)]
    assert found["gpushare_turns_total"] == [(node, 7)]


def test_a_host_without_a_scheduler_so_far_can_be_scraped(scrape, ada):
    make_container(ada)
    assert scrape()["gpushare_containers"][0][0]["node"] == ""


async def test_calls_of_an_engine_and_why_they_failed_are_counted():
    class Broken:
        async def launch(self, launch, progress=None):
            raise launch

        async def statuses(self):
            return ["seen"]

        image_labels = attach = pause = resume = kill = add_memory = remove = statuses

    figures = Figures()
    engine = figures.watch(Broken())
    assert await engine.statuses() == ["seen"]
    for error in (EngineAway("It is away."), EngineError("No.", status=404), EngineError("Oh.", status=500), OSError()):
        with pytest.raises(type(error)):
            await engine.launch(error)
    assert +figures.calls == {"statuses": 1, "launch": 4}
    assert +figures.failures == {("launch", "away"): 1, ("launch", "refused"): 1, ("launch", "error"): 2}


# ---- who may read it ----


@pytest.mark.parametrize("header", ["", "Token gps_unknown", "Bearer x"])
def test_nobody_reads_it_without_a_token(header):
    answer = Client().get("/metrics", headers={"authorization": header} if header else {})
    assert answer.status_code == 401
    assert b"oken" in answer.content
    assert b"gpushare_" not in answer.content


@pytest.mark.parametrize(
    ("asks", "status"),
    [
        ({"REMOTE_ADDR": "127.0.0.1"}, 200),
        ({"REMOTE_ADDR": "::1"}, 200),
        ({"REMOTE_ADDR": "192.0.2.7"}, 401),
        ({"REMOTE_ADDR": "127.0.0.1", "HTTP_X_FORWARDED_FOR": "192.0.2.7"}, 401),
        ({"REMOTE_ADDR": "127.0.0.1", "HTTP_VIA": "1.1 proxy"}, 401),
        ({"REMOTE_ADDR": ""}, 401),
    ],
)
def test_this_host_reads_it_without_a_token_where_that_is_allowed(settings, asks, status):
    settings.GPUSHARE_METRICS = "loopback"
    assert Client().get("/metrics", **asks).status_code == status


def test_it_is_for_reading_only():
    assert Client().post("/metrics").status_code == 405


# ---- what the documents say ----


def test_every_series_stands_in_the_document_and_every_documented_one_is_exported(scrape, ada, node, gpu):
    make_container(ada, "a", gpu, node=node)
    Claim.objects.update(had=1, due=1, held_back=1)
    type(gpu).objects.update(utilisation=1, temperature=1, power=1)
    Node.objects.update(figures=Figures().as_dict(**NOTHING))
    scraped = {re.sub(r"_(bucket|count|sum)$", "", name) for name in scrape()}
    page = (ROOT / "docs/monitoring/README.md").read_text()
    named = set()
    for name in re.findall(r"`(gpushare_[a-z_{},]+)`", page):
        head, _, rest = name.partition("{")
        choices, _, tail = rest.partition("}")
        named |= {f"{head}{choice}{tail}" for choice in choices.split(",")}
    assert named == scraped
