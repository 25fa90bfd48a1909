"""Processes on a card that are no container's: whose they are and what they run, for people."""

import pwd
from collections.abc import Mapping
from itertools import takewhile
from typing import Any

from scheduler import proc
from scheduler.sessions.live_containers import Program, program_of

MOST = 10  # processes shown of one card
LONGEST = 120  # characters of a command


class ForeignProcesses:
    """Each process is looked at once: it keeps its owner and, but for an exec, its command."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, Program | None], tuple[str, str]] = {}

    def described(self, held: Mapping[int, int]) -> list[dict[str, Any]]:
        """`held`: host pid → bytes. The largest first: [{pid, bytes, user, command}]."""
        largest = sorted(held.items(), key=lambda each: (-each[1], each[0]))[:MOST]
        return [{"pid": pid, "bytes": size, **self._look(pid)} for pid, size in largest]

    def forget(self, shown: set[int]) -> None:
        """All but these have ended."""
        self._known = {key: command for key, command in self._known.items() if key[0] in shown}

    def _look(self, pid: int) -> dict[str, str]:
        key = (pid, program_of(pid))
        if key not in self._known:
            self._known[key] = (_user(pid), _command(pid))
        user, command = self._known[key]
        return {"user": user, "command": command}


def _user(pid: int) -> str:
    """A name, or a number where this host has none for it; empty if the process is gone, or in another namespace."""
    try:
        uid = proc.owner(pid)
    except OSError:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _command(pid: int) -> str:
    """Its words up to the first option or address: what comes there may be a password, and everybody here reads this.

    Spaces part words as well: a program that tells its title there writes all of them into the first one.
    """
    try:
        line = proc.read(pid, "cmdline").decode(errors="replace")
    except OSError:
        return ""
    words = line.replace("\0", " ").split()
    plain = list(takewhile(lambda word: not word.startswith("-") and "=" not in word and "://" not in word, words))
    left = len(plain) < len(words)
    text = "".join(each if each.isprintable() else "\ufffd" for each in " ".join(plain))
    return f"{text[:LONGEST]} …" if left or len(text) > LONGEST else text
