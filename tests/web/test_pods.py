"""Containers of a Kubernetes cluster: found and summed by namespace, their output where the cluster has it."""

from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from tests.support.events import EventKind, append
from tests.support.machine import GIB, make_container
from tests.support.people import signed_in
from web.history.reports import report
from web.models import Container, UsageSample
from web.services import attention

pytestmark = pytest.mark.django_db
T0 = datetime(2026, 11, 20, 12, tzinfo=UTC)
PODS = [{"name": "train", "uid": "1", "account": "trainer", "containers": ["main", "side car"]}]


@pytest.fixture
def pod(ada, gpu) -> Container:
    container = make_container(ada, "train", gpu)
    Container.objects.filter(pk=container.pk).update(namespace="team-a", pods=PODS, volume="team-a/train-gpu")
    container.refresh_from_db()
    return container


@pytest.fixture
def browser(ada: User) -> Client:
    return signed_in(ada)


def test_rest_tells_whose_it_is_and_finds_it_by_its_namespace(client, pod, ada, gpu):
    make_container(ada, "other", gpu)
    (found,) = client.get("/api/v1/containers/?namespace=team-a").json()["results"]
    assert (found["name"], found["namespace"], found["pods"]) == ("train", "team-a", PODS)
    assert client.get("/api/v1/containers/?namespace=team-b").json()["results"] == []


@pytest.mark.parametrize("asked", ["q=team-a", "q=eam-", "namespace=team-a"])
def test_the_table_is_searched_by_namespace_and_shows_it(browser, pod, ada, gpu, asked):
    make_container(ada, "other", gpu)
    shown = browser.get(f"/?{asked}").content.decode()
    assert ">train<" in shown
    assert ">other<" not in shown
    assert '<td class="namespace" data-label="Namespace" title="team-a">team-a</td>' in shown
    assert ('<option value="team-a" selected>' in shown) == ("namespace" in asked)


def test_where_no_pod_lives_nothing_is_said_of_namespaces(browser, pod):
    Container.objects.update(finished_at=T0)
    shown = browser.get("/?state=all").content.decode()
    assert ">train<" in shown
    assert 'class="namespace"' not in shown
    assert "All namespaces" not in shown
    chosen = browser.get("/?state=all&namespace=team-a").content.decode()
    assert '<option value="team-a" selected>' in chosen
    assert ">train<" in chosen


def test_a_pod_of_which_only_units_are_known_is_one_all_the_same(client, browser, pod):
    """Its kubelet has not said yet, or never says, whose it is."""
    Container.objects.update(namespace="", pods=[], volume="/memory-1234")
    answer = client.get(f"/api/v1/containers/{pod.pk}/logs/")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "not_supported")
    page = browser.get(f"/containers/{pod.pk}/").content.decode()
    assert "A pod of the cluster; the kubelet has not reported which one." in page
    assert "Its pods are not known" in page
    assert f"/containers/{pod.pk}/shell/" not in page
    assert f"?from={pod.pk}" not in page


def test_no_pod_is_offered_to_be_launched_again(browser, pod, ada):
    """What it is its cluster knows: here only its image would be known, and no claim."""
    now = timezone.now()
    for number in range(3):
        Container.objects.create(
            owner=ada, name=f"job-{number}", image="pytorch", volume="team-a/job", node=pod.node, exit_code=1,
            started_at=now - timedelta(seconds=20), finished_at=now - timedelta(seconds=10),
        )  # fmt: skip
    (item,) = attention.items()
    assert (item.kind, item.acts) == (attention.Kind.FAILING, ())
    assert "?from=" not in browser.get("/launch/").content.decode()


def test_a_replay_says_of_which_namespace_each_is_and_keeps_the_one_that_is_chosen(browser, pod, ada, gpu):
    now = timezone.now().replace(microsecond=0)
    for container in (pod, make_container(ada, "other", gpu)):
        UsageSample.objects.bulk_create(
            UsageSample(at=now + timedelta(seconds=later), span=1, gpu=gpu, container=container, used=GIB, peak=GIB)
            for later in range(120)  # as the scheduler goes on to write them
        )
        append(container, now, EventKind.KILLED)
    day = browser.get(f"/history/{gpu.uuid}/day/").json()
    assert {each["name"]: each["namespace"] for each in day["containers"]} == {"train": "team-a", "other": ""}
    assert {each["name"]: each["namespace"] for each in day["marks"]} == {"train": "team-a", "other": ""}
    at = browser.get(f"/history/{gpu.uuid}/moment/").json()
    assert {each["name"]: each["namespace"] for each in at["containers"]} == {"train": "team-a", "other": ""}
    page = browser.get("/history/?namespace=team-%26a").content.decode()
    assert "<option selected>team-&amp;a</option>" in page
    assert f'href="?gpu={gpu.uuid}&amp;hours=24&amp;namespace=team-%26a&amp;until=' in page
    assert "namespace=" not in browser.get("/history/").content.decode().partition('aria-label="Before')[2]


def test_a_report_by_namespace_and_what_is_of_none(pod, ada, gpu):
    other = make_container(ada, "other", gpu)
    for container, size in ((pod, 2 * GIB), (other, GIB)):
        Container.objects.filter(pk=container.pk).update(created_at=T0)
        append(container, T0, EventKind.STARTED)
        append(container, T0, EventKind.ACCEPTED, gpu, bytes=size, used_after=size)
    rows = report(T0, T0 + timedelta(hours=1), "namespace").rows
    assert [(row.group, row.as_dict()["vram_gib_hours"]) for row in rows] == [("team-a", 2.0), ("(none)", 1.0)]


@pytest.mark.parametrize(
    ("link", "first"),
    [
        ("", "kubectl logs -n team-a train -c main"),
        ("https://logs/{namespace}/{pod}/{container}", "https://logs/team-a/train/main"),
    ],
)
def test_its_output_is_where_the_cluster_has_it(client, browser, pod, settings, link, first):
    settings.GPUSHARE_KUBERNETES_LOGS = link
    answer = client.get(f"/api/v1/containers/{pod.pk}/logs/")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "not_supported")
    assert first in answer.json()["error"]["message"]
    page = browser.get(f"/containers/{pod.pk}/").content.decode()
    assert (f'href="{first}"' if link else first) in page
    assert ("https://logs/team-a/train/side%20car" in page) == bool(link)
    assert 'id="log"' not in page
    assert f"?from={pod.pk}" not in page  # that launches it again


def test_who_may_not_steer_it_does_not_see_where_its_output_is(pod):
    bob = User.objects.create_user("bob")
    page = signed_in(bob).get(f"/containers/{pod.pk}/").content.decode()
    assert "Namespace team-a" in page
    assert "kubectl" not in page
