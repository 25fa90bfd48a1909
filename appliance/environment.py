"""Reading settings from the environment: a value that makes no sense is a sentence, not a traceback.

A variable that is empty is as good as none, whatever it is for.
"""

import difflib
import ipaddress
import os
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

from web.sizes import parse_size

HIGHEST_PORT = 65535
PREFIX = "GPUSHARE_"
# Variables of this prefix that are no settings: of the command line, of programs under the shim, of those who develop
# this; and what the CDI specifications of a card set, or Kubernetes for a service of such a name.
NO_SETTINGS = re.compile(
    r"GPUSHARE_(URL|TOKEN|CONFIG|SOCKET|PATIENCE|SIM|MEMORY_LIMIT|MEMORY_FRACTION|STORM|SCREENSHOTS|TEST_DURATIONS|"
    r"CHECK_SECONDS|CARD_\w+|(\w+_)?SERVICE_(HOST|PORT)(_\w+)?|(\w+_)?PORT(_\d+_(TCP|UDP)(_\w+)?|=\w+://.*))(=.*)?",
    re.DOTALL,
)

_WILDCARD = re.compile(r"\*(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)+(:[0-9]{1,5})?")

_settings: set[str] = set()  # that were read, whatever they said


def text(name: str, default: str = "") -> str:
    _settings.add(name)
    return os.environ.get(name) or default


def refuse_unknown(*others: str) -> None:
    """After all settings were read, but for these `others`, which were read elsewhere. Raises ImproperlyConfigured."""
    known = _settings | set(others)
    for name, value in sorted(os.environ.items()):
        if name.startswith(PREFIX) and value and name not in known and not NO_SETTINGS.fullmatch(f"{name}={value}"):
            (nearest,) = difflib.get_close_matches(name, known, 1, 0.0)
            raise ImproperlyConfigured(
                f"{name} is not a setting. Remove it, or correct its name; the nearest is {nearest}. "
                "docs/settings.md lists all settings."
            )


def words(name: str, default: str = "") -> list[str]:
    """Separated by spaces or commas."""
    return [word for word in text(name, default).replace(",", " ").split() if word]


def switch(name: str, environ: Mapping[str, str] = os.environ) -> bool:
    _settings.add(name)
    value = environ.get(name) or "0"
    if value not in ("0", "1"):
        raise ImproperlyConfigured(f"{name} is {value!r}. It may be 0 or 1.")
    return value == "1"


def one_of(name: str, *choices: str) -> str:
    """One of these; the first is the default."""
    value = text(name, choices[0])
    if value not in choices:
        raise ImproperlyConfigured(f"{name} is {value!r}. It may be {', '.join(choices[:-1])} or {choices[-1]}.")
    return value


def number(name: str, default: float) -> float:
    """At least 0."""
    given = text(name, str(default))
    try:
        value = float(given)
    except ValueError:
        value = float("nan")
    if not 0 <= value < float("inf"):
        raise ImproperlyConfigured(f"{name} is {given!r}, which is not a number of at least 0.")
    return value


def port(name: str, default: int) -> int:
    given = text(name, str(default))
    if not given.isdecimal() or int(given) > HIGHEST_PORT:
        raise ImproperlyConfigured(f"{name} is {given!r}, which is not a whole number of 0 to {HIGHEST_PORT}.")
    return int(given)


def address(name: str) -> str:
    """Of a web page, without a slash at its end; empty where there is none."""
    given = text(name).rstrip("/")
    if given and not (given.startswith(("http://", "https://")) and urlsplit(given).netloc):
        raise ImproperlyConfigured(f"{name} is {given!r}. It is an address such as https://gpu1.lab.example.")
    return given


def require_tls(name: str, address: str) -> None:
    if address.startswith("http://"):
        raise ImproperlyConfigured(
            f"{name} is {address!r}, and GPUSHARE_TLS=1 means that all requests use TLS. Write the address with https."
        )


def wildcard(name: str) -> str:
    """What stands behind the star of "*.apps.lab.example" or "*.apps.lab.example:8443"; empty where nothing is said."""
    given = text(name).lower()
    if given and not _WILDCARD.fullmatch(given):
        raise ImproperlyConfigured(f"{name} is {given!r}. It is a star and a domain: *.apps.lab.example.")
    return given.removeprefix("*.")


def require_apart(name: str, domain: str, page: str, allowed: str, *, is_allowed: bool) -> None:
    """The names of applications, all below `domain`, and that of the dashboard, at `page`, have to be two sites.

    A page sets cookies for its whole site, and pushes out older ones of it. Without a list of public suffixes, two
    names are taken for one site if their last two parts are the same.
    """
    apps, dashboard = (urlsplit(each).hostname or "" for each in (f"//{domain}", page))
    if f".{dashboard}".endswith(f".{apps}"):
        raise ImproperlyConfigured(
            f"{name} is *.{domain}, and the dashboard at {page} is one of these names. Give applications a domain in "
            "which there is nothing else."
        )
    if not is_allowed and apps.split(".")[-2:] == dashboard.split(".")[-2:]:
        raise ImproperlyConfigured(
            f"{name} is *.{domain}, and the dashboard is at {page}: to a browser both are the same site. An "
            "application could set cookies for the dashboard and sign people out of it, but not read its session. Use "
            f"another domain (*.lab-apps.example), or accept this with {allowed}=1."
        )


def hexadecimal(name: str, digits: int) -> str:
    """So many hexadecimal digits; empty where there are none."""
    given = text(name).lower()
    if given and (len(given) != digits or not set(given) <= set("0123456789abcdef")):
        raise ImproperlyConfigured(f"{name} is not {digits} hexadecimal digits: `gpushare-node join` has written it.")
    return given


def size(name: str, default: str) -> int:
    """Bytes."""
    try:
        return parse_size(text(name, default))
    except ValueError as error:
        raise ImproperlyConfigured(f"{name}: {error}") from None


def networks(name: str) -> list[str]:
    """Addresses and networks, separated by spaces or commas: "127.0.0.1 10.0.0.0/8"."""
    found = words(name)
    for word in found:
        try:
            ipaddress.ip_network(word)
        except ValueError as error:
            raise ImproperlyConfigured(f"{name}: {error}.") from None
    return found


def listener(name: str, host: str, default: str = "") -> tuple[str, int] | None:
    """An address to listen at: "2222" at `host`, "0.0.0.0:2222", "[::]:2222"; None where nothing is said."""
    if not (given := text(name, default)):
        return None
    address, _, number = given.rpartition(":")
    if not number.isdecimal() or int(number) > HIGHEST_PORT:
        raise ImproperlyConfigured(
            f"{name} is {given!r}. It is a port such as 2222, or an address and a port: [::]:2222."
        )
    return address.strip("[]") or host, int(number)


def port_range(name: str, default: str) -> tuple[int, int]:
    """The lowest and the highest: "20000-29999", or one port."""
    given = text(name, default)
    lowest, _, highest = given.partition("-")
    highest = highest or lowest
    if not (lowest.isdecimal() and highest.isdecimal() and 0 < int(lowest) <= int(highest) <= HIGHEST_PORT):
        raise ImproperlyConfigured(f'{name} is {given!r}. It is a range of ports such as "20000-29999".')
    return int(lowest), int(highest)


def public_keys(name: str) -> list[str]:
    """Of OpenSSH, one or several with commas between them: the kind and the content of each, without its comment."""
    found = []
    for given in filter(None, map(str.strip, text(name).split(","))):
        from cryptography.exceptions import UnsupportedAlgorithm  # not for those who set none
        from cryptography.hazmat.primitives.serialization import load_ssh_public_key

        key = " ".join(given.split()[:2])
        try:
            load_ssh_public_key(key.encode())
        except (ValueError, UnsupportedAlgorithm):
            raise ImproperlyConfigured(
                f"{name} has {given[:40]!r}. It is a public key as in a .pub file: ssh-ed25519 AAAA…; commas "
                "separate several."
            ) from None
        found.append(key)
    return found
