"""Right-sizing: suggestions come from what runs really took, if they showed it."""

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from tests.support.events import EventKind, append
from tests.support.machine import GIB, make_container
from tests.support.people import client_for, make_user, signed_in
from web.history.peaks import best, peaks, suggest
from web.models import Claim
from web.people.roles import Role

pytestmark = pytest.mark.django_db
MIB = 2**20
NOW = timezone.now()
TRAIN = ["python", "train.py"]


def run(owner, gpu, name, peak, image="torch", command=TRAIN, **fields):
    """One that ended well, unless `fields` say otherwise."""
    ended = {"finished_at": NOW, "exit_code": 0}
    container = make_container(owner, name, gpu, image=image, command=list(command), **{**ended, **fields})
    Claim.objects.filter(container=container).update(peak=peak)
    return container


def test_the_highest_peak_of_all_runs_counts(ada, gpu):
    boss = make_user("boss", Role.OPERATOR)
    run(ada, gpu, "a", 3 * GIB)
    run(ada, gpu, "b", 2 * GIB)
    run(ada, gpu, "c", GIB, command=["python", "test.py"])
    run(ada, gpu, "d", 0)
    first, second = peaks(boss, "torch")
    assert (first.command, first.runs, first.peak, first.suggestion) == (TRAIN, 2, 3 * GIB, suggest(3 * GIB))
    assert (second.command, second.runs, second.peak, second.suggestion) == (["python", "test.py"], 1, GIB, None)
    assert peaks(boss, "torch", ["python", "test.py"]) == [second]
    assert peaks(boss, "jax") == []


HAS_NOT_SHOWN = {
    "lives": {"finished_at": None, "exit_code": None},
    "is suspended": {"finished_at": None, "exit_code": None, "suspended_since": NOW},
    "was killed, by a person or at the end of its time": {"kill_requested_at": NOW, "exit_code": 0},
    "failed, perhaps at its first line": {"exit_code": 1},
    "was ended by its host-memory limit": {"exit_code": 137, "reason": "It used more host memory than its limit."},
    "was removed from outside": {"exit_code": None, "removed_at": NOW},
}


@pytest.mark.parametrize("fields", HAS_NOT_SHOWN.values(), ids=list(HAS_NOT_SHOWN))
def test_a_run_that_was_cut_off_has_not_shown_what_it_needs(ada, gpu, fields):
    for name in "abc":
        run(ada, gpu, name, 100 * MIB, **fields)
    assert peaks(ada, "torch") == []
    assert best(ada, "torch", TRAIN) is None


@pytest.mark.parametrize("kind", [EventKind.REJECTED, EventKind.CARD_FULL])
def test_a_run_that_was_refused_memory_is_counted_apart(ada, gpu, kind):
    for name in "ab":
        refused = run(ada, gpu, name, GIB)
        for _ in range(3):
            append(refused, NOW, kind, gpu)
    made_do, _ = peaks(ada, "torch")
    assert (made_do.runs, made_do.rejected_runs, made_do.peak, made_do.suggestion) == (0, 2, None, None)
    for name in "cd":
        run(ada, gpu, name, 3 * GIB)
    enough, _ = peaks(ada, "torch")
    assert (enough.runs, enough.rejected_runs, enough.peak) == (2, 2, 3 * GIB)
    assert enough.suggestion == suggest(3 * GIB)


def test_what_went_past_the_shim_was_not_measured(ada, gpu):
    for name in "abc":
        append(run(ada, gpu, name, GIB), NOW, EventKind.BYPASS, pid=7)
    assert peaks(ada, "torch") == []


def test_a_quota_is_suggested_from_the_command_else_from_ones_own_runs_else_not_at_all(ada, gpu):
    bob = make_user("bob")
    for number in range(4):
        run(bob, gpu, f"of-bob-{number}", 4 * GIB)
    assert best(ada, "torch", TRAIN).suggestion == suggest(4 * GIB)  # the same work, whoever did it
    assert best(ada, "torch", ["other"]) is None  # what bob does with the image says nothing about it
    for number in range(2):
        run(ada, gpu, f"mine-{number}", GIB, command=["mine", str(number)])
    assert best(ada, "torch", ["other"]) is None
    run(ada, gpu, "mine-2", 2 * GIB, command=["mine", "2"])
    found = best(ada, "torch", ["other"])
    assert (found.command, found.owner, found.runs, found.suggestion) == (None, "ada", 3, suggest(2 * GIB))
    assert best(ada, "torch", TRAIN).command == TRAIN
    assert best(ada, "jax", TRAIN) is None


def test_one_run_of_a_command_is_too_few_and_two_are_enough(ada, gpu):
    run(ada, gpu, "a", GIB)
    assert best(ada, "torch", TRAIN) is None
    run(ada, gpu, "b", GIB)
    assert best(ada, "torch", TRAIN).runs == 2


def test_what_other_people_ran_is_shown_to_nobody_but_operators(ada, gpu):
    for name in "abd":
        run(ada, gpu, name, GIB, command=["train", "--key", "s3cret"])
    bob = make_user("bob")
    run(bob, gpu, "c", MIB, command=["mine"])
    assert [(each.command, each.owner, each.runs) for each in peaks(bob)] == [(["mine"], None, 1), (None, "bob", 1)]
    assert "s3cret" not in str(client_for(bob).get("/api/v1/peaks/").json())
    boss = peaks(make_user("boss", Role.OPERATOR))
    assert [each.command for each in boss] == [["train", "--key", "s3cret"], ["mine"]]


@pytest.mark.parametrize(
    ("peak", "quota"), [(1, 64 * MIB), (64 * MIB, 128 * MIB), (GIB, 1088 * MIB), (100 * GIB, 105 * GIB)]
)
def test_a_suggestion_leaves_a_margin_and_is_round(peak, quota):
    assert suggest(peak) == quota


def browser_of(user) -> Client:
    return signed_in(user)


def test_the_report_by_image_says_how_much_to_ask_for_and_from_how_many_runs(ada, gpu):
    started = timezone.now() - timedelta(hours=1)
    for name, peak in (("a", 3 * GIB), ("b", 2 * GIB)):
        append(run(ada, gpu, name, peak), started, EventKind.ACCEPTED, gpu, bytes=peak, used_after=peak)
    browser = browser_of(ada)
    page = re.sub(r"\s+", " ", browser.get("/reports/", {"group_by": "image"}).content.decode())
    (row,) = re.findall(r"<td class=\"wrap\"><code>python train.py</code>.*?</tr>", page)
    assert re.findall(r"number\">(.*?)</td>", row) == ["2", "0", "3 GiB", "3.19 GiB"]
    (own,) = re.findall(r"<td class=\"wrap\">any command</td>.*?</tr>", page)
    assert re.findall(r"number\">(.*?)</td>", own) == ["2", "0", "3 GiB", "too few runs"]
    assert "Suggested quotas" not in browser.get("/reports/").content.decode()


def test_the_form_says_what_a_suggestion_is_from(ada, gpu):
    ask = lambda command: browser_of(ada).get("/launch/suggestion/", {"image": "torch", "command": command}).json()  # noqa: E731
    assert ask("python train.py") == {}
    for number in range(3):
        run(ada, gpu, str(number), 2 * GIB)
    append(run(ada, gpu, "hungry", 2 * GIB), NOW, EventKind.REJECTED, gpu)
    suggestion = ask("python 'train.py'")
    assert suggestion["size"] == "2.13GiB"
    assert suggestion["text"] == (
        f"3 runs of it took up to 2 GiB. All had this command; the last ended on {NOW:%Y-%m-%d}. "
        "Not counted: 1 in which a request was rejected."
    )
    assert ask("else")["text"].startswith("3 runs of yours took up to 2 GiB. Not all had this command;")
    assert ask("python 'trai") == {}


def test_the_suggestion_over_rest(client, ada, gpu):
    for name in "ab":
        run(ada, gpu, name, GIB)
    (row,) = client.get("/api/v1/peaks/", {"image": "torch", "command": "python train.py"}).json()["results"]
    assert (row["runs"], row["peak"], row["suggestion"], row["owner"]) == (2, GIB, 1088 * MIB, None)
    assert client.get("/api/v1/peaks/", {"command": "'"}).status_code == 400


def test_over_rest_ones_own_runs_stand_in_where_those_of_the_command_are_too_few(client, ada, gpu):
    run(ada, gpu, "a", GIB)
    one, own = client.get("/api/v1/peaks/", {"image": "torch", "command": "python train.py"}).json()["results"]
    assert (one["command"], one["runs"], one["suggestion"]) == (TRAIN, 1, None)
    assert (own["command"], own["owner"], own["suggestion"]) == (None, "ada", None)
