"""`gpushare top` in a real terminal, with real keys: against a real appliance, and against answers made up."""

import os
import re
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from appliance.cli.text import width
from tests.cli.stand import CARD, LEFT, Stand, container, has, is_whole, leaves, row, top, waiting
from tests.cli.support import ENTRY, environment, gpushare
from tests.support.appliance import Appliance, http, until
from tests.support.eventually import PATIENCE
from tests.support.terminal import Screen

SIZES = pytest.mark.parametrize(("rows", "columns"), [(24, 80), (50, 200)])
CLEARS = (b"\x1b[2J", b"\x1b[J", b"\x1b[0J", b"\x1b[1J", b"\x1bc")


# ---- a real appliance ----


@SIZES
def test_it_shows_who_is_there_and_follows(appliance: Appliance, rows: int, columns: int) -> None:
    with top(appliance.environ, rows, columns) as screen:
        screen.shows(has("no containers"))
        assert screen.settings() != screen.before
        appliance.launch("sleep", "600", name="newcomer", gpu_memory="256MiB")
        lines = screen.shows(lambda lines: lines[0].endswith("1 running  by AGE ↓"))
        assert "256 MiB" in lines[row(lines, "newcomer")]
        assert lines[rows - 1].startswith("q quit")
        leaves(screen)


def test_kill_asks_first_and_only_yes_kills(appliance: Appliance) -> None:
    appliance.launch("sleep", "600", name="stays", gpu_memory="64MiB")
    appliance.launch("sleep", "600", name="goes", gpu_memory="64MiB")  # the newest comes first, and is marked
    with top(appliance.environ) as screen:
        screen.shows(has("stays"))
        screen.type("k")
        screen.shows(has("Kill goes of admin? What it has not saved is lost. y / n"))
        screen.type("q")
        screen.shows(has("goes not killed"))
        assert appliance.named("goes")["state"] == "running"
        screen.type("k")
        screen.shows(has("Kill goes of admin?"))
        screen.type("y")
        screen.shows(has("goes: killed"))
        screen.shows(lambda lines: lines[0].endswith("1 running  by AGE ↓"))
        assert appliance.named("goes")["state"] == "killed"
        assert appliance.named("stays")["state"] == "running"
        leaves(screen)


def test_a_refused_kill_is_reported_and_nothing_ends(appliance: Appliance) -> None:
    """Its container ended between the question and the answer."""
    made = appliance.launch("sleep", "600", name="quick", gpu_memory="64MiB")
    with top(appliance.environ) as screen:
        screen.shows(has("quick"))
        screen.type("k")
        screen.shows(has("Kill quick"))
        appliance.api("POST", f"containers/{made['id']}/kill/", {})
        screen.shows(has("no containers"))
        screen.type("y")
        screen.shows(has('"quick" has ended'))
        leaves(screen)


def test_while_the_server_is_killed_it_says_so_keys_work_and_it_comes_back(tmp_path) -> None:
    running = Appliance(tmp_path / "var")
    try:
        running.launch("sleep", "600", name="holds", gpu_memory="64MiB")
        with top(running.environ) as screen:
            screen.shows(has("holds"))
            running.crash()
            lines = screen.shows(has("These figures are old: no answer from"))
            assert has("holds")(lines), "what was known stays on the screen"
            screen.type("/nothing")
            screen.shows(lambda lines: not has("holds")(lines))
            screen.type("\x1b")
            screen.shows(has("holds"))
            screen.type("ky")
            screen.shows(has("holds: no answer from"))
            running.start()
            screen.shows(lambda lines: not has("These figures are old")(lines))
            leaves(screen)
        with top(running.environ) as screen:
            screen.shows(has("holds"))
            running.crash()
            screen.shows(has("These figures are old"))
            leaves(screen)  # also while nobody answers
        running.start()
    finally:
        running.close()


def test_a_token_that_ends_ends_it_with_a_sentence(appliance: Appliance) -> None:
    made = appliance.api("POST", "tokens/", {"name": "short"})
    with top(appliance.environ | {"GPUSHARE_TOKEN": made["key"]}) as screen:
        screen.shows(has("no containers"))
        whose = {"Authorization": f"Token {appliance.token}"}
        http.delete(f"{appliance.url}/api/v1/tokens/{made['id']}/", headers=whose).raise_for_status()
        assert screen.exit_code() == 1
        assert screen.settings() == screen.before
        after = b"".join(screen.written).rpartition(LEFT)[2].decode()
        assert after.startswith("gpushare: ")
        assert after.count("\n") == 1


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 0), *((each, -each) for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT))],
)
def test_whatever_ends_it_the_terminal_is_as_before(appliance: Appliance, number: signal.Signals, code: int) -> None:
    with top(appliance.environ) as screen:
        screen.shows(has("no containers"))
        screen.signal(number)
        assert screen.exit_code() == code
        is_whole(screen)


def test_ctrl_c_leaves_also_out_of_a_question_and_after_ctrl_s(appliance: Appliance) -> None:
    appliance.launch("sleep", "600", name="asked", gpu_memory="64MiB")
    with top(appliance.environ) as screen:
        screen.shows(has("asked"))
        screen.type("\x13k")
        screen.shows(has("Kill asked"))
        leaves(screen, "\x03")
    assert appliance.named("asked")["state"] == "running"


def test_it_stops_and_goes_on_with_the_terminal_whole_in_between(appliance: Appliance) -> None:
    with top(appliance.environ) as screen:
        screen.shows(has("no containers"))
        screen.type("\x1a")
        until(lambda: "T (stopped)" in Path(f"/proc/{screen.process.pid}/status").read_text())
        screen.until("\x1b[?7h\x1b[?25h\x1b[?1049l")
        is_whole(screen)
        screen.signal(signal.SIGCONT)
        until(lambda: screen.settings() != screen.before)
        screen.until("\x1b[?1049h")
        leaves(screen)


# ---- answers made up: many, long, wide, hostile ----


@pytest.fixture
def stand() -> Iterator[Stand]:
    made = Stand()
    yield made
    made.server.shutdown()
    made.server.server_close()


def jobs(lines: list[str]) -> list[str]:
    return [found[0] for line in lines if (found := re.search(r"\bjob-\d+", line))]


@SIZES
def test_two_hundred_scroll_by_key_and_thirty_that_wait_stay_few(stand: Stand, rows: int, columns: int) -> None:
    stand.lists["containers"] = [container(number) for number in range(200)]
    stand.lists["queue"] = [waiting(number) for number in range(1, 31)]
    with top(stand.environ, rows, columns) as screen:
        lines = screen.shows(has("job-000"))
        shown = jobs(lines[:-2])
        assert shown == [f"job-{number:03}" for number in range(len(shown))]
        assert len(shown) >= rows // 3
        waits = sum("wait-" in line for line in lines)
        assert 0 < waits <= rows // 3
        assert has(f"and {30 - waits} more wait")(lines)
        screen.type("\x1b[6~")
        screen.shows(lambda lines: lines[-2].startswith(f"job-{len(shown):03} of "))
        screen.type("\x1b[F")
        lines = screen.shows(has("job-199"))
        assert jobs(lines[:-2])[-1] == "job-199"
        screen.type("\x1b[A\x1bOA")
        screen.shows(lambda lines: lines[-2].startswith("job-197 of user-1"))
        screen.type("\x1b[1~")
        lines = screen.shows(has("job-000"))
        assert all(width(line) <= columns for line in lines)
        leaves(screen)


def test_sorting_turning_and_the_mark_that_stays_on_its_container(stand: Stand) -> None:
    stand.lists["containers"] = [container(2, owner="b"), container(3, owner="a"), container(1, owner="c")]
    with top(stand.environ) as screen:
        screen.shows(has("job-002"))
        screen.type("\x1b[B")
        screen.shows(lambda lines: lines[-2].startswith("job-003"))
        for key, order, expected in (
            ("s", "NAME ↓", [1, 2, 3]),
            ("r", "NAME ↑", [3, 2, 1]),
            ("s", "OWNER ↑", [1, 2, 3]),
            ("r", "OWNER ↓", [3, 2, 1]),
            ("ss", "USED ↓", [3, 2, 1]),
            ("SS", "OWNER ↓", [3, 2, 1]),
        ):
            screen.type(key)
            lines = screen.shows(has(f"by {order}"))
            assert jobs(lines[:-2]) == [f"job-{number:03}" for number in expected], order
            assert lines[-2].startswith("job-003")
        stand.lists["containers"] = [container(9, owner="0"), *stand.lists["containers"]]
        lines = screen.shows(has("job-009"))
        assert lines[-2].startswith("job-003")
        leaves(screen)


def test_the_filter_takes_letters_and_escape_takes_it_off(stand: Stand) -> None:
    stand.lists["containers"] = [container(1, owner="Jürgen"), container(2, owner="日本"), container(3, state="paused")]
    with top(stand.environ) as screen:
        screen.shows(has("job-001"))
        screen.type("/jÜrx\x7f\r")
        lines = screen.shows(has('only "jÜr": 1 of 3'))
        assert jobs(lines[:-2]) == ["job-001"]
        screen.type("/\x7f\x7f\x7f日\r")
        assert jobs(screen.shows(has('only "日": 1 of 3'))[:-2]) == ["job-002"]
        screen.type("\x1b")
        screen.shows(lambda lines: len(jobs(lines[:-2])) == 3)
        screen.type("/paused\r")
        assert jobs(screen.shows(has("1 of 3"))[:-2]) == ["job-003"]
        screen.type("/q")  # is a letter there, and Escape takes all of it off
        screen.shows(has("0 of 3"))
        screen.type("\x1b")
        screen.shows(lambda lines: len(jobs(lines[:-2])) == 3)
        screen.type("h")
        screen.shows(has("kill the selected container, after a question"))
        screen.type("q")
        screen.shows(has("job-001"))
        leaves(screen)


def test_a_window_of_any_size_is_filled_and_never_overrun(stand: Stand) -> None:
    names = ["x" * 63, "short"]
    stand.lists["containers"] = [
        container(n, name=name, owner="jemand@sehr-langer.name.example") for n, name in enumerate(names)
    ]
    stand.lists["queue"] = [waiting(1)]
    with top(stand.environ, 24, 80) as screen:
        screen.shows(has("short"))
        for rows, columns in ((50, 200), (24, 80), (10, 40), (4, 20), (1, 5), (2, 300), (24, 80)):
            screen.seen = b""
            screen.resize(rows, columns)
            screen.until(f"\x1b[{rows};1H")  # drawn anew: a terminal keeps what stood there
            clock = re.compile(r"\d\d:\d\d:\d\d" if columns > 8 else r"q qu|\d\d:")
            screen.shows(lambda lines: clock.match(lines[0]) and len(lines) == rows)  # noqa: B023
            foot = "q quit  ↑↓ select  s sort  r reverse  / filter  k kill  h help"
            shown = foot if columns >= len(foot) else foot[: columns - 1] + "…"
            screen.shows(lambda lines: lines[-1] == shown)  # noqa: B023
        lines = screen.lines
        assert has("x" * 16)(lines)
        assert f"{'x' * 63} of jeman" in lines[-2], "whole where it is marked"
        leaves(screen)


def test_at_eighty_columns_what_matters_stays_and_names_are_whole_if_they_can_be(stand: Stand) -> None:
    stand.lists["containers"] = [container(1, name="a-name-of-thirty-two-letters-yes", state="suspended",
                                          suspended_since=datetime.now(UTC).isoformat(), queue_position=1)]  # fmt: skip
    with top(stand.environ) as screen:
        lines = screen.shows(has("a-name-of-thirty-two-letters-yes"))
        heads = next(line for line in lines if "NAME" in line and "STATE" in line).split()
        assert {"NAME", "STATE", "USED", "QUOTA"} <= set(heads)
        assert "ID" not in heads
        leaves(screen)
    with top(stand.environ, 50, 200) as screen:
        lines = screen.shows(has("a-name-of"))
        heads = next(line for line in lines if "NAME" in line and "STATE" in line).split()
        assert heads == ["ID", "NAME", "OWNER", "IMAGE", "STATE", "GPU", "USED", "QUOTA", "PEAK", "AGE"]
        leaves(screen)


def test_a_reason_is_whole_at_eighty_columns(stand: Stand) -> None:
    reason = (
        "Needs 2 GiB, 124 MiB is free. train-of-bob holds 60 GiB and is paused; resume or kill it. Waits for a turn of "
        "the group vision, whose members hold 1.4 times their fair share."
    )
    stand.lists["containers"] = [container(number) for number in range(40)]
    stand.lists["queue"] = [waiting(1, reason=reason), *(waiting(number) for number in range(2, 9))]
    with top(stand.environ) as screen:
        lines = screen.shows(has("wait-1"))
        text = " ".join(" ".join(lines).split())
        assert reason in text
        assert "and 6 more wait" in text
        leaves(screen)
    with top(stand.environ, 50, 240) as screen:
        assert any("wait-1" in line and reason in line for line in screen.shows(has("wait-1")))
        leaves(screen)


def test_wide_and_combining_letters_keep_the_columns(stand: Stand) -> None:
    owners = ["漢字漢字", "é́", "plain", "🚀🚀"]
    stand.lists["containers"] = [container(number, owner=owner) for number, owner in enumerate(owners)]
    with top(stand.environ, 24, 100) as screen:
        screen.shows(has("job-003"))
        cells = screen._screen.buffer
        at = [row(screen.lines, f"job-{number:03}") for number in range(4)]
        columns = {
            next(x for x in range(100) if cells[y][x].data == "M" and cells[y][x + 1].data == "i") for y in at[1:]
        }
        assert len(columns) == 1, screen.lines
        leaves(screen)


def test_names_give_a_terminal_no_orders(stand: Stand) -> None:
    hostile = "\x1b]52;c;cm0=\x07\x1b[2J\x9b5n\u202e\r\nforged"
    stand.lists["containers"] = [container(1, name=f"job-001{hostile}", owner=hostile, image=hostile)]
    stand.lists["queue"] = [waiting(1, name=hostile, reason=hostile, owner=hostile)]
    stand.lists["gpus"] = [CARD | {"name": hostile}]
    with top(stand.environ, 24, 200) as screen:
        screen.shows(has("job-001"))
        screen.type("k")
        screen.shows(has("Kill job-001"))
        screen.type("n")
        screen.shows(has("not killed"))
        leaves(screen)
        said = b"".join(screen.written).decode()
        assert re.findall(r"\x1b(?!\[(?:\d+;1H|K|[\d;]*m|\?(?:1049|25|7|2026)[hl]))", said) == []
        assert not {"\x07", "\x9b", "\u202e"} & set(said)


def written_lines(drawn: bytes) -> set[int]:
    return {int(line) for line in re.findall(rb"\x1b\[(\d+);1H", drawn)}


def test_nothing_flickers(stand: Stand) -> None:
    """Only what changed is written, nothing is cleared, and a terminal shows it all at once."""
    stand.lists["containers"] = [container(number) for number in range(50)]
    with top(stand.environ) as screen:
        screen.shows(has("job-000"))

        def newest() -> list[bytes]:
            screen.rests(0.1)
            return b"".join(screen.written).split(b"\x1b[?2026h")[-5:-1]  # the last may not be whole yet

        until(lambda: [written_lines(each) for each in newest()] == [{1}] * 4)  # the clock is all that changes
        assert {each.count(b"\x1b[?2026l") for each in newest()} == {1}
        assert not [clear for clear in CLEARS for each in newest() if clear in each]
        clocks = [re.findall(rb"\d\d:\d\d:\d\d", each) for each in newest()]
        assert len({clock for (clock,) in clocks}) == 4, "no second is drawn twice"
        leaves(screen)


def test_a_slow_server_makes_no_key_slow(stand: Stand) -> None:
    stand.lists["containers"] = [container(number) for number in range(3)]
    with top(stand.environ) as screen:
        screen.shows(has("job-000"))
        stand.answers.clear()
        stand.asked.clear()
        assert stand.asked.wait(PATIENCE)
        screen.type("s")
        screen.shows(has("by NAME"))
        leaves(screen)
    stand.answers.set()


# ---- one look ----


def test_one_look_squeezes_no_name_however_narrow(stand: Stand) -> None:
    name, owner = "n" * 63, "jemand@sehr-langer.name.example"
    stand.lists["containers"] = [container(1, name=name, owner=owner)]
    stand.lists["queue"] = [waiting(1, name=name, owner=owner)]
    output = gpushare("top", "--once", environ=stand.environ | {"COLUMNS": "80"}).stdout
    assert output.count(name) == output.count(owner) == 2
    assert "\x1b" not in output
    with Screen([*ENTRY, "top", "--once"], environment(stand.environ), 24, 80) as screen:
        assert screen.exit_code() == 0
        assert name in screen.seen.decode()
        assert LEFT not in screen.seen
        assert screen.settings() == screen.before


def test_a_terminal_that_cannot_be_drawn_on_gets_one_look(stand: Stand) -> None:
    stand.lists["containers"] = [container(1)]
    with Screen(["env", "TERM=dumb", *ENTRY, "top"], environment(stand.environ)) as screen:
        assert screen.exit_code() == 0
        assert b"job-001" in screen.seen
        assert LEFT not in screen.seen


def test_without_colours_where_that_is_wished(stand: Stand) -> None:
    stand.lists["containers"] = [container(1)]
    with top(stand.environ | {"NO_COLOR": "1"}) as screen:
        screen.shows(has("job-001"))
        leaves(screen)
        assert set(re.findall(rb"\x1b\[([\d;]*)m", b"".join(screen.written))) == {b"7", b"0"}


def test_the_terminal_that_goes_takes_it_along(stand: Stand) -> None:
    with top(stand.environ) as screen:
        screen.shows(has("no containers"))
        master, screen._master = screen._master, os.dup(screen._master)
        os.close(screen._slave)
        screen._slave = os.open(os.devnull, os.O_RDWR)
        os.close(master)
        os.close(screen._master)  # the last one that held it open: the kernel hangs up
        screen._master = os.open(os.devnull, os.O_RDWR)
        assert screen.process.wait(60) == -signal.SIGHUP
