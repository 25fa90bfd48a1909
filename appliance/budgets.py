"""Budgets: what one container, user or address may take of what all of them share. One table.

Whoever passes a budget waits or gets a clear answer, and nobody else notices. A row is a field of `Budgets`; its
setting is GPUSHARE_BUDGET_ and the field's name in capitals. `settings.GPUSHARE_BUDGETS` has what holds here, and
docs/budgets.md shows the rows (`table()`; a test compares them).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from web.sizes import format_size, parse_size

PREFIX = "GPUSHARE_BUDGET_"


def _row(default: int, unit: str, whom: str, reason: str) -> Any:
    """`unit` is counted for each `whom`: container, process, user, address, or all of them together."""
    return field(default=default, metadata={"unit": unit, "whom": whom, "reason": reason})


@dataclass(frozen=True, slots=True)
class Budgets:
    """Whole numbers of at least 1. Units of "bytes" may be written as sizes."""

    # ---- what reaches the scheduler: programs ----
    connections: int = _row(
        1024, "connections", "container",
        "A card has room for a few hundred CUDA contexts; each connection takes two of the scheduler's descriptors.",
    )  # fmt: skip
    connections_in_all: int = _row(
        16384, "connections", "all",
        "Of what is left of it no container may have more than the others still can, so there is always room for one.",
    )  # fmt: skip
    connections_before_hello: int = _row(
        64, "connections", "container", "A program says HELLO as soon as it is connected; more wait in the backlog.",
    )  # fmt: skip
    connections_a_second: int = _row(
        100, "connections a second", "container",
        "Each costs half a millisecond. All that a container may have can come at once, after a restart; then so many.",
    )  # fmt: skip
    hello_seconds: int = _row(
        10, "seconds", "connection", "A program that was stopped between connecting and HELLO connects again.",
    )  # fmt: skip
    reserved_descriptors: int = _row(
        512, "descriptors", "all",
        "Kept by each process for its engine, its database and what is connected already; of few, a quarter.",
    )  # fmt: skip
    needs: int = _row(
        16, "open calls", "container",
        "So many are weighed at each decision: half a millisecond for those of eight containers. The next wait unread.",
    )  # fmt: skip
    frames_a_second: int = _row(
        2000, "messages a second", "container",
        "Most programs ask some ten times; beyond it a container is read later. What takes long counts as several.",
    )  # fmt: skip
    rejections_seconds: int = _row(
        10, "seconds", "container",
        "The first rejected call is told by itself; what follows within this time is told in one sum.",
    )  # fmt: skip
    events_a_second: int = _row(
        10, "events a second", "container",
        "Each is a row for ever, and most programs ask some ten times. More calls are told in sums, use once a second.",
    )  # fmt: skip
    maps_bytes: int = _row(
        16 << 20, "bytes", "process",
        "Linux allows 65,530 mappings by default, a line of a hundred characters each; the rest is not read.",
    )  # fmt: skip
    log_bytes_a_second: int = _row(
        4 << 20, "bytes a second", "container", "A hundred pages of text; what prints more is read later and waits.",
    )  # fmt: skip
    log_lines_a_second: int = _row(
        20000, "lines a second", "container", "Each line costs the engine and the copier work, however short it is.",
    )  # fmt: skip
    log_lines_a_second_in_all: int = _row(
        10000, "lines a second", "all", "They are copied in the process that decides: two fifths of a core, at most.",
    )  # fmt: skip
    log_tail_bytes: int = _row(
        16 << 20, "bytes", "request", "One line of 95 MiB was searched for where it begins, and everybody waited.",
    )  # fmt: skip
    console_bytes_a_second: int = _row(
        4 << 20, "bytes a second", "container", "More than a terminal can show; the program waits while it is passed.",
    )  # fmt: skip
    relayed_in_all: int = _row(
        384, "sessions", "all",
        "What one node shows the web side of another host at once. Each has a connection to Redis, and 512 KiB there.",
    )  # fmt: skip
    relayed_bytes_a_second: int = _row(
        16 << 20, "bytes a second", "session", "A long log in seconds; more would be the scheduler's own time.",
    )  # fmt: skip

    # ---- what reaches the web side: people and strangers ----
    log_followers: int = _row(
        32, "followed logs", "user", "A run with its output on the screen is one; a log is read once for all.",
    )  # fmt: skip
    log_followers_in_all: int = _row(256, "followed logs", "all", "300 of them slowed decisions down to 0.3 s.")
    consoles: int = _row(
        8, "consoles", "user", "And programs by exec. Each takes some descriptors, and its output a share of the loop.",
    )  # fmt: skip
    consoles_in_all: int = _row(64, "consoles", "all", "A share of the loop and of the descriptors is kept for others.")
    websockets: int = _row(32, "WebSockets", "user", "Every open tab of the dashboard has one.")
    websockets_of_an_address: int = _row(
        64, "WebSockets", "address", "A lab behind one address has a few people with a few tabs each.",
    )  # fmt: skip
    websockets_in_all: int = _row(512, "WebSockets", "all", "Each is sent every change; so many cost half a core.")
    websocket_messages_a_second: int = _row(
        1000, "messages a second", "connection", "A console acknowledges each piece of output; who sends more waits.",
    )  # fmt: skip
    http_connections_of_an_address: int = _row(
        256, "connections", "address", "Browsers open six; scripts of a whole lab behind one address some dozens.",
    )  # fmt: skip
    http_connections_in_all: int = _row(
        2048, "connections", "all", "20,400 half requests took all descriptors, and the database could not be opened.",
    )  # fmt: skip
    requests_at_once: int = _row(
        32, "open requests", "user", "Each has a thread, and a launch waits in it up to five seconds for its outcome.",
    )  # fmt: skip
    requests_at_once_of_an_address: int = _row(
        64, "open requests", "address", "Until it is known whose they are, which takes a moment.",
    )  # fmt: skip
    requests_at_once_in_all: int = _row(
        256, "open requests", "all", "So many threads, each with a connection to the database and its descriptors.",
    )  # fmt: skip
    requests_a_second: int = _row(
        100, "requests a second", "user", "Ten times what the command line and the pages ask; others count by address.",
    )  # fmt: skip
    sign_ins_a_minute: int = _row(
        60, "attempts a minute", "address", "Checking a password costs a tenth of a second of a core.",
    )  # fmt: skip
    body_bytes: int = _row(3 << 20, "bytes", "request", "The largest launch that makes sense is under 1 MiB.")
    anonymous_body_bytes: int = _row(
        32 << 10, "bytes", "request", "A name and a password; all connections together are then 64 MiB.",
    )  # fmt: skip
    body_parts: int = _row(
        50_000, "lists, objects and commas", "request",
        "Of JSON. The longest command has 16,384 words; at 3 MiB it takes 30 MiB at most while it is read.",
    )  # fmt: skip
    large_bodies: int = _row(4, "bodies", "user", "Those larger than a stranger's may be, until they are answered.")
    large_bodies_in_all: int = _row(
        16, "bodies", "all", "They lie in memory: 48 MiB at most, and ten times that if all are read as JSON at once.",
    )  # fmt: skip
    header_seconds: int = _row(10, "seconds", "request", "A head is one packet or two, also over a slow line.")
    body_seconds: int = _row(60, "seconds", "request", "3 MiB in this time are 50 kB a second.")


def read(environ: Mapping[str, str]) -> Budgets:
    """Raises ImproperlyConfigured with a sentence for a value that makes no sense, or a budget that there is not."""
    known = {setting(each.name): each for each in fields(Budgets)}
    for name in environ:
        if name.startswith(PREFIX) and name not in known:
            raise ImproperlyConfigured(f"{name} is none of the budgets, which docs/budgets.md lists.")
    given = {each.name: _number(name, environ[name], each.metadata["unit"]) for name, each in known.items()
             if environ.get(name)}  # fmt: skip
    return Budgets(**given)


def setting(name: str) -> str:
    """What the environment calls this budget."""
    return PREFIX + name.upper()


def _number(name: str, text: str, unit: str) -> int:
    if unit.startswith("bytes"):
        try:
            number = parse_size(text)
        except ValueError as error:
            raise ImproperlyConfigured(f"{name}: {error}") from None
    else:
        number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise ImproperlyConfigured(f"{name} is {text!r}, which is not a whole number of at least 1.")
    return number


def table() -> str:
    """The rows as docs/budgets.md has them."""
    lines = ["| variable | default | for each | because |", "| --- | --- | --- | --- |"]
    for each in fields(Budgets):
        unit, default = each.metadata["unit"], int(str(each.default))
        amount = format_size(default) + unit.removeprefix("bytes") if unit.startswith("bytes") else f"{default} {unit}"
        lines.append(f"| `{setting(each.name)}` | {amount} | {each.metadata['whom']} | {each.metadata['reason']} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
