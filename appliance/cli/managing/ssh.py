"""`gpushare keys` and `gpushare ssh-config`: public keys for ssh into containers, and what OpenSSH reads of them."""

import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from appliance.cli.client import Json
from appliance.cli.errors import Problem
from appliance.cli.options import connect
from appliance.cli.output import show
from appliance.cli.text import Columns, listed, time_of

USUAL = ("id_ed25519.pub", "id_ecdsa.pub", "id_rsa.pub")


def keys(
    add: Annotated[
        str | None, typer.Option(metavar="FILE", help="Add the public key in FILE; -: standard input; auto: yours.")
    ] = None,
    name: Annotated[str, typer.Option(metavar="NAME", help="With --add: its name; default: the key's comment.")] = "",
    remove: Annotated[int | None, typer.Option(metavar="ID", help="Remove a key.")] = None,
) -> None:
    """List, add and remove your public keys for ssh."""
    if add is not None and remove is not None:
        raise Problem("--add excludes --remove", code="usage")
    if name and add is None:
        raise Problem("--name goes with --add FILE", code="usage")
    client = connect()
    if add is not None:
        made = client.send("POST", "ssh-keys/", {"key": _read(add), "name": name})
        show(made, lambda it: f"key {it['id']}: {it['fingerprint']} added")
    elif remove is not None:
        client.send("DELETE", ("ssh-keys", str(remove)))
        show({"id": remove}, lambda done: "key {id}: removed".format(**done))
    else:
        found = list(client.each("ssh-keys/", page_size=1000))
        columns: Columns = {
            ">ID": "id", "NAME": "name", "KIND": "kind", "FINGERPRINT": "fingerprint",
            "ADDED": time_of("created_at", client.now()), "LAST USED": time_of("last_used_at", client.now()),
        }  # fmt: skip
        show(found, lambda them: listed(them, columns))


def _read(file: str) -> str:
    if file == "-":
        return sys.stdin.read()
    if file == "auto":
        folder = Path.home() / ".ssh"
        found = next((folder / each for each in USUAL if (folder / each).exists()), None)
        if found is None:
            raise Problem(f"there is no key in {folder}", code="usage", hint="ssh-keygen -t ed25519 makes one")
        return found.read_text()
    try:
        return Path(file).expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Problem(f"{file} cannot be read ({error})", code="usage") from None


def ssh_config() -> None:
    """Print OpenSSH's settings for your running containers."""
    client = connect()
    answer = client.get("ssh/")
    if answer["port"] is None:
        raise Problem(
            "ssh is off on this appliance", code="no_ssh", hint="an admin sets GPUSHARE_SSH; use `gpushare exec`"
        )
    host = urlsplit(client.url).hostname or "localhost"
    mine = client.get("me/")["username"]
    found = [
        {"host": f"{each['name']}.gpushare", "hostname": host, "port": answer["port"], "user": each["name"]}
        for each in client.containers(owner=mine)
    ]
    show({"host_key": answer["host_key"], "hosts": found}, lambda _: _config(host, answer, found))


def _config(host: str, answer: Json, found: list[Json]) -> str:
    known = Path.home() / ".ssh" / "known_hosts"
    lines = [
        f"# Add to {known}, so that this host is known:",
        f"# [{host}]:{answer['port']} {answer['host_key']}",
        f"# {answer['fingerprint']}",
    ]
    for each in found:
        lines += ["", f"Host {each['host']}", f"    HostName {each['hostname']}", f"    Port {each['port']}",
                  f"    User {each['user']}"]  # fmt: skip
    return "\n".join(lines)
