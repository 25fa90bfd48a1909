"""A line of the log as text for people, or as a JSON object for programs.

Text:  2026-11-22 20:19:57,123 WARNING gpu1 scheduler.containers.terminator container=train owner=ada: It could not …

What other people name, say or send cannot forge one: control characters are written as escapes, the fields stand before
the message, and the lines of a traceback begin with a bar.
"""

import ast  # noqa: F401 -- and tokenize: Python 3.13 imports them for the first traceback, perhaps when no file opens
import json
import logging
import re
import tokenize  # noqa: F401
from datetime import UTC, datetime

from web.logs.secrets import Scrubber

FIELDS = ("container", "container_id", "owner")
BAR = "    | "
_PLAIN = re.compile(r"[\w.@+-]+")


def escaped(text: str) -> str:
    """On one line, whatever is in it."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


class Formed(logging.Formatter):
    """What all forms have in common."""

    def __init__(self, node: str, scrub: Scrubber) -> None:
        super().__init__()
        self.node = node
        self._scrub = scrub

    def message(self, record: logging.LogRecord) -> str:
        return escaped(self._scrub(record.getMessage()))

    def fields(self, record: logging.LogRecord) -> dict[str, str]:
        """Those that it has."""
        known: dict[str, str] = {}
        for each in record.args if isinstance(record.args, tuple) else ():
            if fields_of := getattr(type(each), "log_fields", None):
                known |= fields_of(each)
        return {name: value for name in FIELDS if (value := known.get(name))}

    def traceback(self, record: logging.LogRecord) -> list[str]:
        """Its lines; none if there is no exception."""
        text = "\n".join(
            [
                *([self.formatException(record.exc_info)] if record.exc_info else []),
                *([self.formatStack(record.stack_info)] if record.stack_info else []),
            ]
        )
        return [escaped(line) for line in self._scrub(text).split("\n")] if text else []


class Text(Formed):
    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_quoted(value)}" for name, value in self.fields(record).items())
        head = f"{self.formatTime(record)} {record.levelname} {_quoted(self.node)} {record.name}{fields}"
        return "\n".join([f"{head}: {self.message(record)}", *(BAR + line for line in self.traceback(record))])


def _quoted(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else json.dumps(value)


class Json(Formed):
    def format(self, record: logging.LogRecord) -> str:
        said = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "node": self.node,
            "logger": record.name,
            "process": record.process,
            **self.fields(record),
            "message": self.message(record),
        }
        if traceback := self.traceback(record):
            said["traceback"] = "\n".join(traceback)
        return json.dumps(said)  # in ASCII: no letter of it orders a terminal about or ends a line
