"""Lines in systemd's own journal: a real journald, in a mount namespace where it is nobody else's."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.appliance import ROOT

JOURNALD = "/usr/lib/systemd/systemd-journald"
pytestmark = pytest.mark.skipif(
    not (Path(JOURNALD).exists() and shutil.which("journalctl") and os.geteuid() == 0),
    reason="needs systemd-journald, journalctl and root",
)

SCENE = """
set -eu
mount -t tmpfs none /run
mkdir -p /run/systemd /run/log/journal
"$JOURNALD" & journald=$!
tries=0
until [ -S /run/systemd/journal/socket ] || [ $tries -gt 200 ]; do sleep 0.1; tries=$((tries + 1)); done
"$PYTHON" -c "$PROGRAM"
tries=0
until journalctl -D /run/log/journal/* -o json --no-pager | grep -q "the last line" || [ $tries -gt 200 ]
do sleep 0.1; tries=$((tries + 1)); done
journalctl -D /run/log/journal/* -o json --all --no-pager SYSLOG_IDENTIFIER=gpushare
kill $journald
wait $journald || true
"""
PROGRAM = """
import logging, logging.config, os, resource
from tests.appliance.test_log_lines import FORGED, Someone
from web.logs import journal
from web.logs.choose import configured
journal.WAITING_BYTES = 1 << 17  # as where the kernel allows no more
logging.config.dictConfig(configured("journal", "INFO", "gpu1", ()))
log = logging.getLogger("scheduler.worker")
log.warning("container %s did not give way: %s", Someone(), "why")
log.info("forged %s", Someone(FORGED, "ada\\nPRIORITY=0"))
try:
    raise ValueError("two\\nlines")
except ValueError:
    log.exception("failed")
log.error("long %s", "x" * 3_000_000)
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
log.error("without descriptors %s", "y" * 3_000_000)
log.info("the last line")
"""


def test_a_line_has_the_journals_own_fields_whatever_is_in_it_and_however_long_it_is():
    environ = os.environ | {"JOURNALD": JOURNALD, "PYTHON": sys.executable, "PROGRAM": PROGRAM}
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", SCENE],
        cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    gave, forged, failed, long, short, last = map(json.loads, done.stdout.splitlines())
    assert gave["MESSAGE"] == "container train did not give way: why"
    assert (gave["PRIORITY"], gave["_TRANSPORT"], gave["LOGGER"]) == ("4", "journal", "scheduler.worker")
    fields = ("GPUSHARE_NODE", "GPUSHARE_CONTAINER", "GPUSHARE_CONTAINER_ID", "GPUSHARE_OWNER")
    assert [gave[name] for name in fields] == ["gpu1", "train", "17c1dcbd", "ada"]
    assert (gave["CODE_FUNC"], gave["CODE_LINE"]) == ("<module>", "9")
    assert forged["PRIORITY"] == "6", "a value is one value, whatever is in it"
    assert forged["GPUSHARE_OWNER"] == "ada\nPRIORITY=0"
    assert "\n" not in forged["MESSAGE"]
    assert failed["MESSAGE"].startswith("failed\nTraceback (most recent call last):\n")
    assert failed["PRIORITY"] == "3"
    assert len(long["MESSAGE"]) == 3_000_005
    assert len(short["MESSAGE"]) == 64 << 10
    assert last["MESSAGE"] == "the last line"


def test_without_a_journal_the_line_goes_to_stderr_and_a_full_one_holds_nobody_up(tmp_path):
    address = str(tmp_path / "socket")
    script = f"""
import logging
from web.logs.journal import Journal
from web.logs.lines import Text
from web.logs.secrets import Scrubber
import time
text = Text("gpu1", Scrubber(()))
log = logging.getLogger("x")
log.addHandler(Journal(text, text, {address!r}))
log.warning("nobody there")
import socket
journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
journal.bind({address!r})
begun = time.monotonic()
for number in range(20_000):
    log.warning("number %d", number)
assert time.monotonic() - begun < 60
first = journal.recv(65536).decode()
assert "MESSAGE=number 0\\n" in first, first
journal.setblocking(False)
read = 1
try:
    while True:
        journal.recv(65536)
        read += 1
except BlockingIOError:
    pass
log.warning("read again")
assert "MESSAGE=read again" in journal.recv(65536).decode()
assert f"MESSAGE={{20_000 - read}} lines before this one are lost" in journal.recv(65536).decode()
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith(" WARNING gpu1 x: nobody there\n")
    assert done.stderr.count("\n") == 1
