"""What a line of the log says, in each of its forms: fields that programs find, nothing forged, nothing secret."""

import io
import json
import logging
import os
import re
import resource
import subprocess
import sys
from dataclasses import dataclass

import pytest

from tests.support.appliance import ROOT
from web.logs import ById
from web.logs.choose import is_journals
from web.logs.lines import Formed, Json, Text
from web.logs.secrets import Scrubber

FORGED = "x\n2026-11-22 20:19:57,123 ERROR gpu1 scheduler.worker: the scheduler is gone\r\x1b[2J\u2028end"


@dataclass
class Someone:
    name: str = "train"
    owner: str = "ada"

    def __str__(self) -> str:
        return self.name

    def log_fields(self) -> dict[str, str]:
        return {"container": self.name, "container_id": "17c1dcbd", "owner": self.owner}


def said(form: type[Formed], message: str, *arguments: object, error: bool = False, known: tuple[str, ...] = ()) -> str:
    """What is written to stderr for a line at warning."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(form("gpu1", Scrubber(known)))
    log = logging.Logger("scheduler.worker")
    log.addHandler(handler)
    try:
        if error:
            raise ValueError(arguments[-1])
    except ValueError:
        log.exception(message, *arguments)
    else:
        log.warning(message, *arguments)
    return stream.getvalue()


def test_text_has_the_node_the_container_and_its_owner_before_the_words():
    line = said(Text, "container %s did not give way: %s", Someone(), "why")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} WARNING gpu1 scheduler\.worker container=train container_id=17c1dcbd "
        r"owner=ada: container train did not give way: why\n",
        line,
    )
    assert " scheduler.worker container_id=abc: " in said(Text, "container %s hangs", ById("abc"))
    assert " gpu1 scheduler.worker: nobody's\n" in said(Text, "nobody's")


def test_json_has_them_as_fields():
    entry = json.loads(said(Json, "container %s did not give way: %s", Someone(), "why"))
    fields = ("level", "node", "logger", "container", "container_id", "owner", "message")
    assert {name: entry[name] for name in fields} == {
        "level": "warning", "node": "gpu1", "logger": "scheduler.worker", "container": "train",
        "container_id": "17c1dcbd", "owner": "ada", "message": "container train did not give way: why",
    }  # fmt: skip
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", entry["time"])


@pytest.mark.parametrize("error", [False, True])
def test_nothing_that_is_put_in_forges_a_line_of_text(error):
    text = said(Text, "container %s: %s", Someone(FORGED, FORGED), FORGED, error=error)
    first, *rest = text.splitlines()  # also at what only Python takes for the end of a line
    assert all(line.startswith("    | ") for line in rest)
    assert bool(rest) is error
    assert len(re.findall(r"^\d{4}-\d\d-\d\d", text, re.MULTILINE)) == 1
    assert first.count("\\n2026-11-22") == 4, "escaped, wherever it stood"
    assert not [char for char in text if not (char.isprintable() or char == "\n")]


@pytest.mark.parametrize("error", [False, True])
def test_nothing_that_is_put_in_forges_a_line_of_json(error):
    text = said(Json, "container %s: %s", Someone(FORGED, FORGED), FORGED, error=error)
    assert text.count("\n") == 1
    assert text.isascii()
    entry = json.loads(text)
    assert entry["container"] == entry["owner"] == FORGED
    assert ("ValueError: x\\n2026" in entry.get("traceback", "").replace("\n", "\\n")) is error


@pytest.mark.parametrize("form", [Text, Json])
@pytest.mark.parametrize(
    "secret",
    [
        "bad token gps_SECRET12-_x here", "Authorization: Token SECRET12", "('authorization', 'Bearer SECRET12')",
        "> Authorization: Basic SECRET12", "{b'authorization': b'Token SECRET12'}", "Cookie: a=SECRET12; b=SECRET12",
        "Set-Cookie: sessionid=SECRET12; Path=/", "connect to postgres://gpushare:SECRET12@db:5432/x failed",
        "redis://:SECRET12@cache/0", "password=SECRET12", "'password': 'SECRET12'", "WANDB_API_KEY=SECRET12",
        '{"client_secret": "SECRET12"}', "the database said KNOWN-TO-US-SECRET12 is wrong",
    ],
)  # fmt: skip
def test_what_looks_like_a_secret_is_left_out(form, secret):
    known = ("KNOWN-TO-US-SECRET12", None, "", "is")
    for text in (said(form, "it says: %s", secret, known=known), said(form, "no: %s", secret, error=True, known=known)):
        assert "SECRET12" not in text
        assert "…" in text or "\\u2026" in text


def test_words_that_only_sound_secret_stay():
    for text in ("the token has ended", "secret-key: Permission denied", "a password is needed", "at http://a:80/b@c"):
        assert text in said(Text, "%s", text)


def test_the_journals_own_stream_is_recognised(tmp_path, monkeypatch):
    with (tmp_path / "stream").open("w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        here = os.fstat(stream.fileno())
        assert is_journals({"JOURNAL_STREAM": f"{here.st_dev}:{here.st_ino}"})
        assert not is_journals({"JOURNAL_STREAM": f"{here.st_dev}:{here.st_ino + 1}"}), "systemd's, but redirected"
        assert not is_journals({})


# ---- how much ----

SETTINGS = """
import logging, logging.config, os, resource, sys
from web.logs.choose import configured
logging.config.dictConfig(configured("text", "INFO", "gpu1", ()))
log = logging.getLogger("scheduler.worker")
"""


def run(script: str) -> list[str]:
    """The lines that a process wrote to its log."""
    done = subprocess.run(
        [sys.executable, "-c", SETTINGS + script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stderr.splitlines()


def test_eighty_thousand_failures_without_descriptors_are_two_lines_and_one_traceback():
    script = """
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
for number in range(80_000):
    try:
        os.open("/dev/null", os.O_RDONLY)
    except OSError:
        log.exception("connection %d cannot be taken", number)
"""
    lines = run(script)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 32
    events = [line for line in lines if not line.startswith("    | ")]
    assert "connection 0 cannot be taken" in events[0]
    assert any("Too many open files" in line for line in lines)
    left = sum(int(re.search(r"(?:and|:) (\d+) (?:like it|more)", line)[1]) for line in events[1:])
    assert left + sum("cannot be taken" in line and "more lines" not in line for line in events) == 80_000
    assert sum("Traceback" in line for line in lines) <= 1 + 80_000 // 8_000, "one in ten seconds"


def test_each_of_a_few_containers_has_its_line_and_what_is_left_out_is_counted_at_the_end():
    lines = run("for number in range(120): log.warning('container %s could not be ended', number)")
    assert [line.rpartition(": ")[2] for line in lines[:50]] == [
        f"container {number} could not be ended" for number in range(50)
    ]
    assert lines[50:] == [lines[50]]
    assert lines[50].endswith("70 more lines like this were left out: container 0 could not be ended")


def test_what_happens_anyway_may_happen_more_often():
    lines = run("for number in range(501): log.info('container %s has ended', number)")
    assert len(lines) == 501
    assert lines[500].endswith("1 more lines like this were left out: container 0 has ended")


def test_what_strangers_cause_is_written_once():
    lines = run("for n in range(9): logging.getLogger('django.request').warning('Not Found: %s', n)")
    assert len(lines) == 2
    assert "Not Found: 0" in lines[0]
    assert "8 more" in lines[1]
