"""Which form the log has, and Django's setting for it."""

import logging
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from web.logs.journal import Journal
from web.logs.lines import Json, Text
from web.logs.secrets import Scrubber
from web.logs.sums import InSums

FORMS = ("auto", "text", "json", "journal")
TOO_MUCH = ("httpx", "httpcore", "uvicorn", "websockets", "urllib3", "docker")  # a line a request


def configured(form: str, level: str, node: str, secrets: Iterable[str | None]) -> dict[str, Any]:
    """`LOGGING`. `form` is one of FORMS, `secrets` what no line may tell."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "handlers": {"log": {"()": handler, "form": form, "node": node, "secrets": secrets}},
        "loggers": {name: {"level": "WARNING"} for name in TOO_MUCH},
        "root": {"handlers": ["log"], "level": level},
    }


def handler(form: str, node: str, secrets: Iterable[str | None]) -> logging.Handler:
    made = _formed(form, node, Scrubber(secrets))
    made.addFilter(InSums(made.handle))
    return made


def _formed(form: str, node: str, scrub: Scrubber) -> logging.Handler:
    text = Text(node, scrub)
    if form == "journal" or (form == "auto" and is_journals(os.environ)):
        return Journal(text, text)
    stderr = logging.StreamHandler()
    stderr.setFormatter(Json(node, scrub) if form == "json" else text)
    return stderr


def is_journals(environ: Mapping[str, str]) -> bool:
    """Whether what is written to stderr goes to the journal: systemd tells the device and the inode of that stream."""
    try:
        here = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):
        return False
    return environ.get("JOURNAL_STREAM") == f"{here.st_dev}:{here.st_ino}"
