"""What other people's programs and names bring to a terminal: text and colours, and no orders."""

import json
import os
import pty
import sys

import pytest

from appliance.cli import output
from appliance.cli.screen import Screen
from appliance.cli.text import harmless
from tests.support.appliance import Appliance

CLIPBOARD = b"\x1b]52;c;cm0gLXJmIC8K\x07"
HOSTILE = CLIPBOARD + b"\x1b[2J\x1b]0;title\x1b\\\x9b5n\xc2\x9b6n\x1b[31mred\x1b[0m \x1bc\x1b[>c\ttab\rback\n"
ORDERS = ["\x1b]", "\x1b[2J", "\x1bc", "\x1b[>", "\x9b", "\x07"]


@pytest.fixture
def in_a_terminal(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_orders_are_shown_as_signs_however_the_output_is_cut(in_a_terminal, size):
    screen = Screen()
    parts = [screen.shown(HOSTILE[at : at + size]) for at in range(0, len(HOSTILE), size)]
    shown = b"".join(parts) + screen.end()
    assert not [order for order in ORDERS if order in shown.decode()]
    assert b"\x1b[31mred\x1b[0m" in shown
    assert b"\ttab\rback\n" in shown
    assert "␛]52;c;cm0gLXJmIC8K␇" in shown.decode()


def test_colours_of_a_program_end_with_its_output(in_a_terminal):
    screen = Screen()
    assert (screen.shown(b"\x1b[1;41mx"), screen.end()) == (b"\x1b[1;41mx", b"\x1b[0m")


def test_half_a_colour_at_the_end_is_a_sign(in_a_terminal):
    screen = Screen()
    assert screen.shown("ä".encode()[:1]) == b""
    assert screen.shown("ä".encode()[1:] + b"\x1b[3") == "ä".encode()
    assert screen.end().decode() == "␛[3"


def test_raw_and_a_pipe_get_every_byte(in_a_terminal, monkeypatch):
    assert Screen(raw=True).shown(HOSTILE) == HOSTILE
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert Screen().shown(HOSTILE) == HOSTILE


def test_json_for_eyes_says_the_same_without_orders(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    answer = {"name": "ä\x9b31m\u202e\x1b]52\U000e0001", "lines": ["a\nb"]}
    output.show_json(answer)
    said = capsys.readouterr().out
    assert not [ascii(char) for char in said if not (char.isprintable() or char == "\n")]
    assert json.loads(said) == answer


def test_words_and_remarks_keep_their_lines_and_lose_orders():
    assert harmless("one\ntwo \x1b]52;c;x\x07\u202e") == "one\ntwo �]52;c;x��"


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    running = Appliance(tmp_path_factory.mktemp("noisy") / "var")
    yield running
    running.close()


def in_terminal(appliance, start, *words):
    """All that the command line wrote to a terminal."""
    ours, theirs = pty.openpty()
    process = start(*words, environ=appliance.environ | {"TERM": "xterm"}, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        said += part
    os.close(ours)
    process.wait(60)
    return said


def test_logs_run_ps_and_top_in_a_terminal(noisy, start):
    script = ("python3", "-c", f"import sys; sys.stdout.buffer.write({HOSTILE!r})")
    ran = in_terminal(noisy, start, "run", "--name", "noise", "local", *script)
    logs = in_terminal(noisy, start, "logs", "noise")
    raw = in_terminal(noisy, start, "logs", "--raw", "noise")
    assert CLIPBOARD in raw
    for said in (ran, logs):
        assert "␛]52;c;cm0gLXJmIC8K␇".encode() in said
        assert b"\x1b[31mred" in said
        assert not [order for order in ORDERS if order in said.decode()]
    piped = start("logs", "noise", environ=noisy.environ, text=False)
    assert piped.stdout.read() == HOSTILE
    for words in (("ps", "-a"), ("ps", "-a", "--json"), ("top", "--once"), ("gpus",)):
        said = in_terminal(noisy, start, *words)
        assert said
        assert b"\x1b]" not in said


def test_what_is_too_much_at_once_is_asked_again(tmp_path, start):
    """As often as the appliance says; a script that asks quickly notices nothing."""
    busy = Appliance(tmp_path / "var", GPUSHARE_BUDGET_REQUESTS_A_SECOND="2")
    try:
        running = [start("ps", environ=busy.environ) for _ in range(4)]
        assert [(each.wait(60), each.stderr.read()) for each in running] == [(0, "")] * 4
    finally:
        busy.close()
