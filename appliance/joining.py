"""`gpushare-node join URL TOKEN`: makes this host a node of an appliance elsewhere.

It asks the web side there for what a node needs, and writes it to the file of settings, in which all else stays as it
is. Nothing is written unless all of it came. docs/nodes.md tells what such a host can do.
"""

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from appliance import VERSION, proxies
from appliance.envfile import PLACE
from web.texts import fault_of_setting

NAMES = ("GPUSHARE_NODE", "DATABASE_URL", "REDIS_URL", "GPUSHARE_AUDIT_KEY")
WITHIN = 30.0  # seconds for the answer
AFTER = """This host is now the node {node}. Its settings are in {file}; other lines there are unchanged.
Start its scheduler, and no web side:  systemctl disable --now gpushare; systemctl enable --now gpushare-scheduler"""


class NotJoined(Exception):
    """A sentence about why."""


def main() -> None:
    """Runs the command and ends the process."""
    try:
        print(join(_arguments(sys.argv[1:])))
    except NotJoined as error:
        sys.exit(f"gpushare-node: {error}")


def join(asked: argparse.Namespace) -> str:
    """What to tell whoever asked. Raises NotJoined, with nothing changed."""
    path = Path(asked.file).resolve()  # the link itself stays
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise NotJoined(f"{path} cannot be written: run this as root.")
    settings = ask(asked.url, asked.token, asked.name) | {"GPUSHARE_WEB": asked.url.rstrip("/")}
    try:
        write(path, settings)
    except ValueError as error:
        raise NotJoined(f"{asked.url} gave an invalid answer: {error}. Nothing was changed.") from None
    return AFTER.format(node=settings["GPUSHARE_NODE"], file=path)


def ask(url: str, token: str, name: str) -> dict[str, str]:
    """What this host needs as a node of that name, by the names of settings. Raises NotJoined."""
    body = {"token": token, "node": name, "release": VERSION, "schema": last_change()}
    try:
        with httpx.Client(transport=proxies.transport(url), timeout=WITHIN) as client:
            answer = client.post(f"{url.rstrip('/')}/api/v1/nodes/join/", json=body)
        answered = answer.json()
    except proxies.BadProxy as error:
        raise NotJoined(f"{error}.") from None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise NotJoined(f"{url} does not answer: {error}") from None
    if answer.is_error:
        raise NotJoined(_why(answered) or f"{url} answers {answer.status_code}.")
    found = {name: str(answered.get(name, "")) for name in NAMES} if isinstance(answered, dict) else {}
    if not found.get("DATABASE_URL"):
        raise NotJoined(f"{url} is not an appliance. Nothing was changed.")
    return found


def write(path: Path, settings: Mapping[str, str]) -> None:
    """Sets these in the file, whole or not at all; lines that set them before are replaced, all others stay.

    Raises ValueError for a value that would be more than the value of its line, with nothing written.
    """
    for name, value in settings.items():
        if fault := fault_of_setting(value):
            raise ValueError(f"the value of {name} has {fault}, which no line of {path} can hold")
    lines = path.read_text().split("\n") if path.exists() else []
    if lines and not lines[-1]:
        lines.pop()
    for name, value in settings.items():
        line, sets = f"{name}={value}", re.compile(rf"\s*{name}\s*=")
        at = [number for number, each in enumerate(lines) if sets.match(each)]
        for number in reversed(at[1:]):
            del lines[number]
        if at:
            lines[at[0]] = line
        else:
            lines.append(line)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write("\n".join(lines) + "\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _why(answered: object) -> str:
    """The sentence of a refusal, without what would steer a terminal; empty if there is none."""
    match answered:
        case {"error": {"message": str() as message}}:
            return "".join(sign if sign.isprintable() else " " for sign in message)
    return ""


def last_change() -> str:
    """The name of the last change of the database that this program knows, without Django: that would make a home."""
    changes = Path(__file__).resolve().parents[1] / "web" / "migrations"
    return max(path.stem for path in changes.glob("[0-9]*.py"))


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpushare-node", description="Makes this host a node of an appliance.")
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser("join", help="fetch a node's settings and write them")
    verb.add_argument("url", metavar="URL", type=_url, help="address of the appliance's web side")
    verb.add_argument("token", metavar="TOKEN", help="token of the join command")
    verb.add_argument("--name", default=os.uname().nodename, help="name of this node (%(default)s)")
    verb.add_argument("--file", default=str(PLACE), help="file of settings (%(default)s)")
    return parser.parse_args(words)


def _url(text: str) -> str:
    if urlsplit(text).scheme not in ("http", "https") or not urlsplit(text).hostname:
        raise argparse.ArgumentTypeError(f"{text!r} is not an http:// or https:// address")
    return text


if __name__ == "__main__":
    main()
