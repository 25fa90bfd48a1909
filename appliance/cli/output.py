"""Where words go: answers to stdout, as text or JSON; remarks to stderr; bytes of a container as they are."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import typer

from appliance.cli.errors import Problem
from appliance.cli.text import harmless

T = TypeVar("T")

as_json = False  # set once --json has been read: answers are JSON, and an error that comes later, too
raw = False  # while the terminal is a container's: it no longer begins lines by itself


def show(answer: T, in_words: Callable[[T], str]) -> None:
    if as_json:
        show_json(answer)
    else:
        print(harmless(in_words(answer)), flush=True)


def show_json(answer: object) -> None:
    """Indented for eyes, and on one line for programs."""
    print(_json(answer), flush=True)


def show_each(words: Sequence[str], act: Callable[[str], T], in_words: Callable[[T], str]) -> None:
    """Acts on each, shows what became of it, goes on after a failure, and fails in the end if one did."""
    failed = False
    for word in words:
        try:
            done = act(word)
        except Problem as problem:
            if len(words) == 1:
                raise
            failed = True
            note(f"{word}: {problem.line()}")
        else:
            show(done, in_words)
    if failed:
        raise typer.Exit(1)


def _json(answer: object) -> str:
    """For eyes, what could order a terminal about is written as in ASCII; to programs it means the same."""
    if not sys.stdout.isatty():
        return json.dumps(answer, ensure_ascii=False)
    text = json.dumps(answer, indent=2, ensure_ascii=False)
    return "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)


def note(line: str) -> None:
    """For the person, beside the output that a program may read."""
    _remark(f"gpushare: {line}")


def write(data: bytes, descriptor: int = 1) -> None:
    """Past Python's buffer and its lock: a thread may be in here when the process ends.

    Raises BrokenPipeError, and Problem on a full disk: nobody is to take what was written for the whole.
    """
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Problem(f"output cannot be written here: {error.strerror}", code="not_written") from None


def lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """The lines of a stream as they are finished, and what is left at its end."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line.decode(errors="replace") for line in whole)
    if rest:
        yield rest.decode(errors="replace")


def note_json(**fields: Any) -> None:
    _remark(json.dumps(fields, ensure_ascii=False))


def _remark(text: str) -> None:
    text = harmless(text)  # it may tell a name or a reason that is somebody else's
    if sys.stderr:  # else closed by whoever started us
        text = f"\r\n{text}\r\n" if raw else f"{text}\n"
        write(text.encode(sys.stderr.encoding, "backslashreplace"), sys.stderr.fileno())
