"""A rule that several places tell is worded alike by all of them."""

import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.template.defaultfilters import floatformat
from django.utils import timezone

from appliance.cli import console, text
from appliance.cli.attach import STANDING
from appliance.cli.client import PAGE
from appliance.cli.reports import Group
from appliance.cli.rows import state_words
from appliance.cli.top import drawing
from appliance.cli.views import FILTERS
from scheduler.core.state import HIGHEST_PRIORITY, LOWEST_PRIORITY
from shim.binding import PAGE_SLOTS
from tests.support.machine import make_container, make_node
from tests.support.people import signed_in
from web.api.protocol.queries import ContainerQuery, PageQuery, Pages
from web.console import frames
from web.history.fairness import Figures
from web.history.reports import GROUPINGS
from web.live import feed, snapshot
from web.live.consumer import SIGN_IN
from web.models import AllocationEvent, Claim, Container, State
from web.models.records import COLOURS, MARKS
from web.models.states import ENDED
from web.pages.table import load
from web.sizes import format_size, parse_size
from web.spec.fields import MOST_GPUS
from web.spec.quotas import asked
from web.spec.requests import PRIORITY_HIGHEST, PRIORITY_LOWEST, NoteSpec

pytestmark = pytest.mark.django_db
NOW = timezone.now()
STATIC = Path(__file__).parents[2] / "static" / "gpushare"


@pytest.fixture
def browser(ada):
    return signed_in(ada)


def ago(seconds: float):
    return NOW - timedelta(seconds=seconds)


def test_who_waits_is_the_same_for_rest_screens_and_a_new_order(client, browser, ada, gpu):
    made = [
        make_container(ada, "early", gpu, suspended_since=ago(30), queue_position=1),
        make_container(ada, "frozen", gpu, suspended_since=ago(20), queue_position=2, paused_at=ago(10)),
        make_container(ada, "late", gpu, suspended_since=ago(10), queue_position=3),
        make_container(ada, "ended", gpu, suspended_since=ago(10), finished_at=ago(5), exit_code=0),
    ]
    waiting = {each.name: each.suspended_since.timestamp() for each in made[:3]}
    client.force_authenticate(ada)
    assert [row["name"] for row in client.get("/api/v1/queue/").json()["results"]] == list(waiting)
    assert [each.name for each in Container.objects.waiting()] == list(waiting)
    shown = snapshot.read()["containers"].values()
    assert {one["name"]: since for one in shown if (since := one["suspended_since"]) is not None} == waiting
    items = browser.get("/").context["page"].items
    assert {item["name"]: since for item in items if (since := item["suspended_since"]) is not None} == waiting
    assert browser.get(f"/containers/{made[1].pk}/").context["since"] == waiting["frozen"]


def test_who_has_no_place_in_the_queue_yet_stands_behind_those_who_have(client, ada, gpu):
    """As the screens' script has it. Databases differ in where nothing is sorted to: SQLite put it first."""
    make_container(ada, "new", gpu, suspended_since=ago(1))
    make_container(ada, "older", gpu, suspended_since=ago(2))
    make_container(ada, "first", gpu, suspended_since=ago(3), queue_position=1)
    answer = client.get("/api/v1/queue/").json()["results"]
    assert [row["name"] for row in answer] == ["first", "older", "new"]


@pytest.mark.parametrize("order", ["finished_at", "-finished_at"])
def test_what_has_not_ended_stands_behind_what_has_in_an_order_by_ends(client, ada, order):
    for name, ended in (("lives", None), ("late", ago(1)), ("early", ago(9))):
        make_container(ada, name, finished_at=ended, exit_code=0)
    answer = client.get("/api/v1/containers/", {"ordering": order}).json()["results"]
    ends = ["early", "late"] if order == "finished_at" else ["late", "early"]
    assert [row["name"] for row in answer] == [*ends, "lives"]


def test_the_table_is_sorted_by_the_state_that_it_shows(browser, ada):
    for number, (name, fields) in enumerate(
        (state, fields)
        for fields_of_state in range(2)
        for state, fields in {
            "created": {"started_at": None},
            "running": {},
            "suspended": {"suspended_since": ago(9 - fields_of_state)},
            "paused": {"paused_at": ago(5), "suspended_since": ago(8) if fields_of_state else None},
            "swapped": {"swapped_at": ago(5), "paused_at": ago(5) if fields_of_state else None},
            "exited": {"finished_at": ago(4 - fields_of_state), "exit_code": 0},
            "failed": {"finished_at": ago(4 - fields_of_state), "exit_code": 1},
            "killed": {"finished_at": ago(4 - fields_of_state), "exit_code": 0, "kill_requested_at": ago(4)},
        }.items()
    ):
        make_container(ada, f"{name}-{number}", **fields)
    states = [state.value for state in State for _ in range(2)]
    for sort, expected in (("state", states), ("-state", states[::-1])):
        items = browser.get("/", {"sort": sort, "state": "all"}).context["page"].items
        assert [item["state"] for item in items] == expected


def test_a_host_that_got_another_name_is_one_machine_on_every_screen(client, browser, ada):
    make_node(name="before", policy="fifo", seen_at=ago(3600), policies=[{"name": "fifo"}])
    make_node(name="now", policy="fair", policies=[{"name": "fair", "explanation": "", "bound": "", "source": ""}])
    make_node(name="never", policy="", seen_at=None)
    client.force_authenticate(ada)
    assert snapshot.read()["node"]["policy"] == "fair"
    assert client.get("/api/v1/policy/").json()["policy"] == "fair"
    assert browser.get("/queue/").context["policy"] == "fair"


def test_styles_and_scripts_name_the_states_the_events_and_the_colours_that_there_are():
    styles = "".join(path.read_text() for path in STATIC.rglob("*.css"))
    scripts = "".join(path.read_text() for path in STATIC.rglob("*.js"))
    groups = [set(re.findall(r'data-state="(\w+)"', group)) for group in re.findall(r":(?:is|not)\([^()]*\)", styles)]
    grouped = [group for group in groups if group & ENDED]  # whoever names one that has ended names them all
    assert len(grouped) >= 4
    assert all(group >= ENDED for group in grouped)
    named = set(re.findall(r'(?<!\.connection)\[data-state="(\w+)"', styles)) | set(
        re.findall(r'\bstate [!=]== "(\w+)"', scripts)
    )
    assert named <= set(State.values)
    events = {name for group in re.findall(r"\.event:is\(([^()]*)\)", styles) for name in re.findall(r"\w+", group)}
    assert events <= set(AllocationEvent.Kind.values) != set()
    assert [int(each) for each in re.findall(r'\[data-mark\$="(\d+)"\] \{', styles)] == list(range(COLOURS))
    assert f"?? 0) % {MARKS})" in scripts
    assert f"?? 0) % {COLOURS}}}" in scripts
    assert f"[...Array({COLOURS}).keys()]" in scripts


@pytest.mark.parametrize(
    "size", [0, 1, 1023, 1024, 1152 << 20, (1152 << 20) + 1, 1179 << 10, 1023 << 20, 66 << 20, 5 << 40, 3 << 52]
)
def test_the_command_line_writes_sizes_as_the_pages_do(size):
    """1.125 GiB was 1.12 GiB in `gpushare queue`, beside a reason that said 1.13 GiB."""
    assert text.size(size) == format_size(size)


def test_the_command_line_knows_what_the_appliance_knows():
    """It is installed alone and imports none of this: what it has to know as well stands there again."""
    assert [group.value for group in Group] == list(GROUPINGS)


def test_the_document_of_rest_names_all_that_a_report_may_be_grouped_by():
    (documented,) = re.findall(r"^`group_by` is ([^.]*)\.", (STATIC.parents[1] / "docs" / "rest.md").read_text(), re.M)
    assert re.findall(r"`(\w+)`", documented) == list(GROUPINGS)


def test_a_list_is_filtered_by_the_same_over_rest_and_on_the_command_line():
    asked = {*ContainerQuery().fields} - {*PageQuery().fields} - {"ordering", "live"}  # `live` is --all there
    assert set(FILTERS) == asked
    assert Pages.max_page_size == PAGE
    assert console.WINDOW == frames.WINDOW
    kinds = {kind.name: kind.value for kind in console.FrameKind}
    assert kinds == {kind.name: kind.value for kind in frames.FrameKind if kind.name in kinds}
    assert set(drawing.STATES) == {state.value for state in State if state not in ENDED}
    assert set(STANDING) < set(drawing.STATES)


def test_the_core_and_the_requests_have_the_same_priorities():
    assert (LOWEST_PRIORITY, HIGHEST_PRIORITY) == (PRIORITY_LOWEST, PRIORITY_HIGHEST)


def test_scripts_and_templates_know_what_the_server_does():
    live = (STATIC / "parts" / "live.js").read_text()
    silence = int(re.search(r"const SILENCE = (\d+);", live)[1]) / 1000
    assert silence >= 2 * (feed.HEARTBEAT + feed.REREAD)  # one sign of life may come late, or not at all
    assert f"event.code === {SIGN_IN} &&" in live
    frame = (STATIC.parents[1] / "templates" / "app.html").read_text()
    assert f'name="note" maxlength="{NoteSpec().fields["note"].max_length}"' in frame


def test_the_page_of_a_container_refuses_no_size_that_the_server_takes(browser, ada, gpu):
    """It had a pattern of its own: "2GIB" and "2 GIB" could be launched with, and not changed to."""
    page = browser.get(f"/containers/{make_container(ada, 'a', gpu).pk}/").content.decode()
    (field,) = re.findall(r'<input id="gpu_memory"[^>]*>', page)
    pattern = re.search(r'pattern="([^"]*)"', field)
    for text_given in ("2GiB", " 512m", "2GIB", "1.5 g", "1073741824", "2 GIB"):
        assert parse_size(text_given)
        assert pattern is None or re.fullmatch(pattern[1], text_given)


def test_no_launch_may_have_more_gpus_than_a_lease_page_has_slots():
    assert MOST_GPUS == PAGE_SLOTS


def test_a_load_between_two_per_cent_is_the_one_that_scripts_write(ada, gpu):
    """Python rounds a half to the even one, JavaScript up: with two GPUs 12 % became 13 % a second later."""
    container = make_container(ada, "a", gpu)
    claims = [Claim(gpu=gpu, utilisation=percent) for percent in (25, 0)]
    assert load(container, claims).startswith("13 %")
    held_back = {"state": "running", "started_at": ago(600).isoformat(),
                 "gpus": [{"had_lately": 7.5, "held_back_lately": 1.0}]}  # fmt: skip
    assert state_words(held_back, NOW) == "running, 13 % in turns"


@pytest.mark.parametrize("ratio", [1.0949, 1.0951])
def test_who_is_above_their_share_is_so_by_the_figure_that_is_shown(ratio):
    assert Figures("ada", had=ratio, due=1.0).above == (floatformat(ratio, 2) == "1.10")


def test_what_a_container_without_a_gpu_yet_may_have_is_the_same_in_the_table_and_on_its_page(browser, ada, gpu):
    """Nobody had named a quota, and the table said 0 bytes."""
    made = Container.objects.create(owner=ada, name="a", image="x", node=gpu.node, gpu_count=2)
    each = asked(made.gpu_memory)
    assert f'placeholder="{format_size(each)}"' in browser.get(f"/containers/{made.pk}/").content.decode()
    assert f"0 bytes / {format_size(2 * each)} / 0 bytes" in browser.get("/").content.decode()
