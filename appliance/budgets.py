"""Budgets that a lab may have to raise: what one user or address, or all together, may take of the web side at once.

A field's setting is GPUSHARE_BUDGET_ and its name in capitals. Other limits are constants beside the code that uses
them: they protect the scheduler's loop, descriptors and memory, whatever the lab.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from django.core.exceptions import ImproperlyConfigured


@dataclass(frozen=True, slots=True)
class Budgets:
    """Whole numbers of at least 1."""

    requests_a_second: int = 100  # of a user, else of an address: ten times what the command line and the pages ask
    requests_at_once_of_an_address: int = 64  # until it is known whose they are, which takes a moment
    requests_at_once_in_all: int = 256  # so many threads, each with four descriptors, one its database connection
    sign_ins_a_minute: int = 60  # of an address; checking a password takes a core for a tenth of a second
    http_connections_of_an_address: int = 256  # browsers open six; scripts of a lab behind one address some dozens
    http_connections_in_all: int = 2048  # 20,400 half requests once took all descriptors, the database's included
    websockets_of_an_address: int = 64  # a lab behind one address has a few people with a few tabs each
    websockets_in_all: int = 512  # each is sent every change: so many cost half a core
    log_followers: int = 32  # of a user; a run with its output on the screen is one
    log_followers_in_all: int = 256  # 300 of them delayed decisions by 0.3 s
    consoles: int = 8  # of a user, programs by exec included; each takes descriptors
    consoles_in_all: int = 64  # their output goes through the scheduler's loop


NAMES = {f"GPUSHARE_BUDGET_{each.name.upper()}": each.name for each in fields(Budgets)}  # setting → budget


def read(environ: Mapping[str, str]) -> Budgets:
    """Raises ImproperlyConfigured for an invalid value."""
    given: dict[str, int] = {}
    for setting, name in NAMES.items():
        if text := environ.get(setting):
            if not text.isdecimal() or int(text) < 1:
                raise ImproperlyConfigured(f"{setting} is {text!r}, which is not a whole number of at least 1.")
            given[name] = int(text)
    return Budgets(**given)
