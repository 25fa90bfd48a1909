"""Whoever writes a line of the log goes on, whatever the line is made of and whatever happens while it is written."""

import io
import logging
import subprocess
import sys

import pytest

from tests.support.appliance import ROOT
from web.logs.sums import InSums


@pytest.fixture
def log() -> tuple[logging.Logger, io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(InSums(handler.handle))
    logger = logging.Logger("scheduler.worker")
    logger.addHandler(handler)
    return logger, stream


class Broken:
    def __str__(self) -> str:
        raise RuntimeError("I have no words")


@pytest.mark.parametrize("message", ["%d containers of %s", Broken()], ids=["does not fit", "has no text"])
def test_a_line_that_cannot_be_put_into_words_stops_nobody(
    log: tuple[logging.Logger, io.StringIO], message: object, capsys: pytest.CaptureFixture[str]
) -> None:
    logger, stream = log
    logger.warning(message, "many", "ada")
    assert "Logging error" in capsys.readouterr().err  # and the handler tells where the line is
    logger.warning("the next one")
    assert stream.getvalue() == "the next one\n"


TALKS = """
import logging, sys
from web.logs.sums import InSums
handler = logging.StreamHandler(sys.stdout)
handler.addFilter(InSums(handler.handle))
logging.getLogger().addHandler(handler)
class Talks:
    def __str__(self):
        logging.warning("inner")
        return "outer"
logging.warning("%s", Talks())
"""


def test_what_logs_while_a_line_is_written_is_not_waited_for() -> None:
    """As what the garbage collector ends: asyncio's tasks and connections tell of themselves then, in any thread."""
    result = subprocess.run(
        [sys.executable, "-c", TALKS], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.splitlines()[-1] == "outer"
    assert "inner" in result.stdout


ENDS = """
import io, logging, sys
from web.logs.sums import InSums
stream = io.StringIO() if sys.argv[1] == "closed" else sys.stderr
handler = logging.StreamHandler(stream)
handler.addFilter(InSums(handler.handle))
logging.getLogger().addHandler(handler)
for number in range(60):
    logging.warning("line %d", number)
if stream is not sys.stderr:
    stream.close()
"""


@pytest.mark.parametrize(("stream", "said"), [("open", "10 more lines like this were left out"), ("closed", "")])
def test_at_the_end_the_rest_is_said_where_somebody_still_reads_it(stream: str, said: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", ENDS, stream], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert said in result.stderr
    assert bool(result.stderr) == bool(said), result.stderr
