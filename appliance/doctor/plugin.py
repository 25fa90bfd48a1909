"""Docker's volume plugin: whether it is served, and whether it answers as Docker would ask."""

import json
import socket
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import DatabaseError

from appliance.doctor.finding import Finding, fine, note, wrong

WITHIN = 5.0  # seconds for an answer


def plugin() -> Iterator[Finding]:
    people, path = settings.GPUSHARE_PLUGIN_PEOPLE, settings.GPUSHARE_PLUGIN_SOCKET
    if not people:
        yield fine("not used: GPUSHARE_PLUGIN_PEOPLE is empty")
        return
    try:
        said = _ask(path)
    except (OSError, HTTPException, ValueError) as error:
        yield wrong(
            f"No volume plugin answers at {path}: {error}.",
            "Containers with such a volume do not start, and `docker volume ls` takes a quarter of a minute.",
            "Start the scheduler, with the Docker engine, as root; its log says what keeps it from serving the plugin.",
        )
        return
    if said != {"Implements": ["VolumeDriver"]}:
        yield wrong(
            f"Another program answers at {path}.",
            "Containers with such a volume do not start.",
            "Set GPUSHARE_PLUGIN_SOCKET to another path.",
        )
        return
    yield fine(f"answers at {path}")
    yield from _people(people)


def _ask(path: str) -> Any:
    """Raises OSError, HTTPException or ValueError."""
    connection = HTTPConnection("plugin", timeout=WITHIN)
    with socket.socket(socket.AF_UNIX) as connection.sock:
        connection.sock.settimeout(WITHIN)
        connection.sock.connect(path)
        connection.request("POST", "/Plugin.Activate")
        return json.loads(connection.getresponse().read())


def _people(people: list[str]) -> Iterator[Finding]:
    names = {name for name in people if name != "*"}
    try:
        there = get_user_model().objects.filter(username__in=names, is_active=True).values_list("username", flat=True)
        missing = sorted(names.difference(there))
    except DatabaseError:
        return  # its own check says so
    if missing:
        yield note(
            f"There is no active account {', '.join(missing)}.",
            "Containers of these owners do not start.",
            "Make the account on the page People, or take the name out of GPUSHARE_PLUGIN_PEOPLE.",
        )
