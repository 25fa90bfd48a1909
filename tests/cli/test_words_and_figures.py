"""Figures into words and back."""

from datetime import UTC, datetime
from unittest.mock import Mock

import pytest
import typer
from typer.testing import CliRunner

from appliance.cli.errors import Problem
from appliance.cli.main import app
from appliance.cli.rows import CONTAINER_KEYS, in_order, only, state_words
from appliance.cli.text import clock, day_or_time, ordinal, seconds, size, span, table
from appliance.cli.views import _by_number
from web import times

NOW = datetime(2026, 11, 20, 21, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (None, "-"),
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1 KiB"),
        (66 * 2**20, "66 MiB"),
        (2 * 2**30, "2 GiB"),
        (int(1.5 * 2**30), "1.5 GiB"),
        (10 * 2**30, "10 GiB"),
        (100 * 2**30, "100 GiB"),
        (3 * 2**40, "3 TiB"),
    ],
)
def test_sizes_are_written_in_binary_units_without_idle_zeros(count, words):
    assert size(count) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 s"),
        (8.9, "8 s"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (349_200, "4 d 1 h"),
        (-3, "0 s"),
    ],
)
def test_spans_name_their_two_largest_units(count, words):
    assert span(count) == words
    assert times.span(count) == words, "a reason has the same text"


@pytest.mark.parametrize(
    ("number", "words"),
    [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (12, "12th"), (22, "22nd"), (113, "113th")],
)
def test_places_in_the_queue_are_ordinals(number, words):
    assert ordinal(number) == words


@pytest.mark.parametrize(
    ("text", "count"),
    [("90", 90), ("1.5", 1.5), ("90s", 90), ("15m", 900), ("2h", 7200), ("1h30m", 5400), ("7d", 604_800)],
)
def test_durations_are_read(text, count):
    assert seconds(text) == count


@pytest.mark.parametrize("text", ["", "soon", "5 m", "-1", "1x", "h", "1h-3m"])
def test_what_is_no_duration_is_refused_with_examples(text):
    with pytest.raises(ValueError, match="90s, 15m"):
        seconds(text)


def test_report_times_are_dates_times_or_how_long_ago():
    assert day_or_time("7d", NOW) == "2026-11-13T21:30:00+00:00"
    assert day_or_time("2026-11-01T08:00Z", NOW) == "2026-11-01T08:00:00+00:00"
    assert day_or_time("2026-11-01T08:00+02:00", NOW) == "2026-11-01T06:00:00+00:00"
    with pytest.raises(ValueError, match="not a time"):
        day_or_time("last week", NOW)


@pytest.mark.parametrize("text", ["99999999999d", "0001-01-01T00:00+14:00", "9999-12-31T23:59-23:00"])
def test_a_time_beyond_all_time_is_refused_in_words(text):
    with pytest.raises(ValueError, match="is not a time: write"):
        day_or_time(text, NOW)


def test_a_clock_time_carries_its_date_only_on_another_day():
    here = NOW.astimezone()
    assert clock(NOW.isoformat(), NOW) == here.strftime("%H:%M:%S")
    assert clock("2026-11-01T12:00:00Z", NOW).startswith("2026-11-01 ")


def test_a_gpu_that_tells_nothing_takes_no_part_in_what_a_container_computed_as_on_its_page():
    fields = {"held_back_lately": 12.0, "had_lately": 30.0}
    gpus = [fields, {"held_back_lately": None, "had_lately": None}]
    container = {"state": "running", "gpus": gpus, "started_at": "2026-11-01T00:00:00Z"}
    assert state_words(container, NOW) == "running, 50 % in turns"


def test_a_table_aligns_figures_right_and_lets_no_control_character_through():
    made = table(("NAME", ">USED"), [("a", "1 GiB"), ("evil\x1b[2J\nname", "512 MiB")])
    assert made.split("\n") == [
        "NAME              USED",
        "a                1 GiB",
        "evil�[2J�name  512 MiB",
    ]  # fmt: skip


def test_a_state_says_what_one_would_ask_next():
    it = {"state": "running", "gpus": [{"had_lately": 15.0, "held_back_lately": 30.0}], "exit_code": None}
    for lived, percent in (("21:00:00", 25), ("21:29:00", 25), ("21:29:40", 75)):
        assert state_words(it | {"started_at": f"2026-11-20T{lived}Z"}, NOW) == f"running, {percent} % in turns"
    gone = it | {"state": "swapped", "gave_way": "idle", "gave_way_to": "late"}
    assert state_words(gone, NOW) == "swapped, gave way to late"
    assert state_words(gone | {"gave_way": ""}, NOW) == "swapped"


def test_a_forecast_that_a_swarm_decides_names_no_node():
    text = "Swarm chooses the node. It is started as soon as one has room."
    client = Mock(each=lambda *_, **__: [{"uuid": f"GPU-{n}", "index": n, "node": f"gpu{n}"} for n in range(2)])
    assert _by_number(client, text, "", "Swarm chooses the node.") == text
    assert _by_number(client, "GPU-1 has it.", "gpu1", "It is empty.") == "Would go to gpu1. It is empty. 1 has it."


def test_help_at_eighty_columns_cuts_no_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    output = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}, terminal_width=80).stdout
    assert "forecast" in output
    long = [line for line in output.splitlines() if line.endswith("...") or len(line) > 80]
    assert long == ["Usage: gpushare [OPTIONS] COMMAND [ARGS]..."]


def test_help_of_each_command_is_at_most_eighty_columns_wide_and_has_brackets_once(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for name in typer.main.get_command(app).commands:
        output = CliRunner().invoke(app, [name, "--help"], terminal_width=80).stdout
        assert f"Usage: gpushare {name} " in output
        assert [line for line in output.splitlines() if len(line) > 80 or "[[" in line] == []


def _container(name, used, age=0):
    gpus = [{"used": used, "quota": 1, "peak": 1}]
    return {"name": name, "gpus": gpus, "created_at": f"2026-11-20T21:{29 - age:02}:00Z", "owner": "ada"}


@pytest.mark.parametrize(
    ("column", "names"),
    [(None, "bca"), ("name", "abc"), ("-name", "cba"), ("used", "abc"), ("-USED", "cba"), ("age", "bca")],
)
def test_a_list_is_in_the_order_of_a_column(column, names):
    found = [_container("b", 2, 0), _container("c", 3, 1), _container("a", 1, 2)]
    assert "".join(each["name"] for each in in_order(found, column, CONTAINER_KEYS)) == names


def test_columns_are_chosen_and_an_unknown_one_is_reported_with_those_there_are():
    heads, rows = ("ID", "NAME", ">USED"), [("1", "a", "2 GiB")]
    assert only(heads, rows, "used, name") == ([">USED", "NAME"], [["2 GiB", "a"]])
    for do in (lambda: only(heads, rows, "size"), lambda: in_order([], "size", CONTAINER_KEYS)):
        with pytest.raises(Problem, match="no such column"):
            do()
