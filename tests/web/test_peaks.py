"""Right-sizing: suggestions come from what runs really took."""

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from tests.support.events import Kind, append
from tests.support.machine import GIB, make_container
from tests.support.people import make_user
from web.history.peaks import peaks, suggest
from web.models import Claim
from web.people.roles import Role

pytestmark = pytest.mark.django_db
MIB = 2**20


def run(owner, gpu, name, peak, image="torch", command=("python", "train.py")):
    container = make_container(owner, name, gpu, image=image, command=list(command), finished_at=timezone.now())
    Claim.objects.filter(container=container).update(peak=peak)
    return container


def test_the_highest_peak_of_all_runs_counts(ada, gpu):
    boss = make_user("boss", Role.OPERATOR)
    run(ada, gpu, "a", 3 * GIB)
    hungry = run(ada, gpu, "b", 2 * GIB)
    run(ada, gpu, "c", GIB, command=["python", "test.py"])
    run(ada, gpu, "d", 0)
    for _ in range(3):
        append(hungry, timezone.now(), Kind.REJECTED, gpu)
    first, second = peaks(boss, "torch")
    assert (first.command, first.runs, first.rejected_runs, first.peak) == (["python", "train.py"], 2, 1, 3 * GIB)
    assert (second.command, second.runs, second.rejected_runs, second.peak) == (["python", "test.py"], 1, 0, GIB)
    assert peaks(boss, "torch", ["python", "test.py"]) == [second]
    assert peaks(boss, "jax") == []


def test_what_other_people_ran_is_counted_together(ada, gpu):
    run(ada, gpu, "a", GIB, command=["train", "--key", "s3cret"])
    for name in "bd":
        run(ada, gpu, name, 2 * GIB, command=["train", "--key", "other"])
    bob = make_user("bob")
    run(bob, gpu, "c", MIB, command=["mine"])
    mine, others = peaks(bob, "torch")
    assert (mine.command, mine.runs) == (["mine"], 1)
    assert (others.command, others.runs, others.peak) == (None, 3, 2 * GIB)
    assert [each.command for each in peaks(ada)] == [["train", "--key", "other"], ["train", "--key", "s3cret"], None]


@pytest.mark.parametrize(
    ("peak", "quota"), [(1, 64 * MIB), (64 * MIB, 128 * MIB), (GIB, 1088 * MIB), (100 * GIB, 105 * GIB)]
)
def test_a_suggestion_leaves_a_margin_and_is_round(peak, quota):
    assert suggest(peak) == quota


def test_the_report_by_image_says_how_much_to_ask_for_and_from_how_many_runs(ada, gpu):
    started = timezone.now() - timedelta(hours=1)
    for name, peak in (("a", 3 * GIB), ("b", 2 * GIB)):
        append(run(ada, gpu, name, peak), started, Kind.ACCEPTED, gpu, bytes=peak, used_after=peak)
    browser = Client()
    browser.force_login(ada)
    page = browser.get("/reports/", {"group_by": "image"}).content.decode()
    (row,) = re.findall(r"<td class=\"wrap\"><code>python train.py</code>.*?</tr>", page)
    assert re.findall(r"number\">(.*?)</td>", row) == ["2", "0", "3 GiB", "3.2 GiB"]
    assert "How much to ask for" not in browser.get("/reports/").content.decode()


def test_the_suggestion_over_rest(client, ada, gpu):
    run(ada, gpu, "a", GIB)
    (row,) = client.get("/api/v1/peaks/", {"image": "torch", "command": "python train.py"}).json()["results"]
    assert (row["runs"], row["peak"], row["suggestion"]) == (1, GIB, 1088 * MIB)
    assert client.get("/api/v1/peaks/", {"command": "'"}).status_code == 400
