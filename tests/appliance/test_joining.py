"""What a host that joins takes from a web side that may be a stranger's: settings, and nothing that reaches further."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance import envfile, joining

KEPT = "# of this host\nGPUSHARE_GPUS=sim:1x1GiB\n"
GOOD = {
    "GPUSHARE_NODE": "gpu2",
    "DATABASE_URL": "postgres://node_2:secret@gpu1:5432/gpushare",
    "REDIS_URL": "redis://gpu1:6379/0",
    "GPUSHARE_AUDIT_KEY": "00ff",
}
HOSTILE = [
    "\rGPUSHARE_BYPASS_ACTION=kill",
    "\nA=1",
    "\r\nA=1",
    "\x0bA=1",
    "\x85A=1",
    "\u2028A=1",
    "\0",
    "\x1b[2J",
    "\\",
]


@pytest.fixture
def asked(tmp_path: Path) -> Namespace:
    file = tmp_path / "gpushare.env"
    file.write_text(KEPT)
    return Namespace(url="http://gpu1:8000", token="gpn_x", name="gpu2", file=str(file))


def answers(monkeypatch: pytest.MonkeyPatch, status: int, body: Any) -> None:
    request = httpx.Request("POST", "http://gpu1:8000")
    monkeypatch.setattr(httpx.Client, "post", lambda *_, **__: httpx.Response(status, json=body, request=request))


def test_it_writes_what_it_was_given_and_keeps_what_was_there(asked, monkeypatch):
    answers(monkeypatch, 200, GOOD)
    joining.join(asked)
    assert Path(asked.file).read_text().startswith(KEPT)
    assert envfile.read(Path(asked.file)) == {"GPUSHARE_GPUS": "sim:1x1GiB", **GOOD, "GPUSHARE_WEB": asked.url}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("more", HOSTILE)
def test_no_value_sets_anything_else(asked, monkeypatch, name, more):
    answers(monkeypatch, 200, {**GOOD, name: GOOD[name] + more})
    with pytest.raises(joining.NotJoined, match=f"the value of {name} has .*Nothing was changed"):
        joining.join(asked)
    assert Path(asked.file).read_text() == KEPT


@pytest.mark.parametrize("value", ["'a", '"a', "a\\"])
def test_a_value_that_would_take_the_next_line_to_itself_is_refused(tmp_path, value):
    with pytest.raises(ValueError, match="the value of A has a"):
        joining.write(tmp_path / "gpushare.env", {"B": "1", "A": value})
    assert not (tmp_path / "gpushare.env").exists()


@pytest.mark.parametrize("body", [[], "x", {"error": "x"}, {"error": {"message": 1}}])
def test_an_answer_of_another_form_is_a_sentence(asked, monkeypatch, body):
    for status in (200, 403):
        answers(monkeypatch, status, body)
        with pytest.raises(joining.NotJoined, match="http://gpu1:8000"):
            joining.join(asked)


def test_a_refusal_steers_no_terminal(asked, monkeypatch):
    answers(monkeypatch, 403, {"error": {"message": "no\x1b]0;title\x07"}})
    with pytest.raises(joining.NotJoined, match=r"no \]0;title "):
        joining.join(asked)
