"""The commands that do something: log in and out, read logs, steer containers."""

import getpass
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from appliance.cli import cards, options, output, views
from appliance.cli import login as accounts
from appliance.cli.client import PAGE, Client, Json
from appliance.cli.errors import UNKNOWN, Problem
from appliance.cli.options import Note, connect
from appliance.cli.output import lines, note, show, show_each, write
from appliance.cli.screen import Screen
from appliance.cli.text import size

USUAL_WEIGHT = 100  # in computing: nothing to tell of
MANAGE = Path(__file__).resolve().parents[2] / "manage.py"
ON_THIS_HOST = "http://127.0.0.1:8000"
LOOPBACK = ("localhost", "127.0.0.1", "::1")

Some = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CONTAINER", help="Names, ids, or starts of ids.", autocompletion=options.names, show_default=False
    ),
]


def login(
    url: Annotated[str | None, typer.Argument(metavar="URL", help="Address: https://gpu.lab.example")] = None,
    user: Annotated[str | None, typer.Option("-u", "--user", help="Sign in with a user name and a password.")] = None,
    token_stdin: Annotated[bool, typer.Option("--token-stdin", help="Read the token from standard input.")] = False,
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="With --user: read the password from standard input.")
    ] = False,
) -> None:
    """Sign in and store a token."""
    address = accounts.tidy(
        url or os.environ.get("GPUSHARE_URL") or typer.prompt("Address", default=ON_THIS_HOST, err=True)
    )
    if password_stdin and (token_stdin or not user):
        raise Problem("--password-stdin needs --user NAME, and not --token-stdin", code="usage")
    with _while_logging_in():
        if token_stdin:
            token = sys.stdin.readline().strip()
        elif user:
            password = sys.stdin.readline().rstrip("\n") if password_stdin else _ask_secretly("Password")
            token = connect(accounts.Login(address, "")).sign_in(user, password)
        else:
            token = _ask_secretly("Token").strip()
        if not token:
            raise Problem("no token was given", code="bad_token")
        account = accounts.Login(address, token)
        who = connect(account).whoami()
    path = accounts.store(account)
    if urlsplit(address).scheme == "http" and urlsplit(address).hostname not in LOOPBACK:
        note("this address is not https: the token is sent unencrypted")
    done = {"url": address, "user": who, "stored": str(path)}
    show(done, lambda done: "Logged in to {url} as {user}; stored in {stored}".format(**done))


@contextmanager
def _while_logging_in() -> Iterator[None]:
    """Whoever is at it needs no hint to log in, and a token is rather mistyped than deleted."""
    try:
        yield
    except Problem as problem:
        if problem.code == "bad_token":
            problem.hint = "copy a whole token, from your page Me or the file admin-token on the host"
            if problem.status:
                problem.message = "the appliance does not know this token"
        elif problem.status == UNKNOWN:
            problem.hint = ""
        raise


def _ask_secretly(what: str) -> str:
    try:
        if sys.stdin.isatty():
            return getpass.getpass(f"{what}: ")
    except EOFError:
        pass
    raise Problem(f"no {what.lower()} was given", code="usage", hint=f"without a terminal, use --{what.lower()}-stdin")


def logout() -> None:
    """Forget the address and the token."""
    show({"removed": str(accounts.forget())}, lambda done: "Logged out; removed {removed}".format(**done))


def logs(
    container: options.Container,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Follow the output.")] = False,
    tail: Annotated[
        int | None, typer.Option("-n", "--tail", min=0, metavar="LINES", help="Only the last lines.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print control characters unchanged, as in a pipe.")] = False,
) -> None:
    """Print the output of a container. In a terminal, control characters are shown as symbols."""
    client = connect()
    path = f"containers/{client.container(container)['id']}/logs/"
    asked = {"follow": "true"} if follow else {}
    if tail is not None:
        asked["tail"] = str(tail)
    # Ctrl-C here ends the reading and nothing else.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with client.stream(path, **asked) as chunks:
        if not output.as_json:
            screen = Screen(raw=raw)
            for chunk in chunks:
                write(screen.shown(chunk))
            write(screen.end())
            return
        for line in lines(chunks):
            print(json.dumps({"line": line}), flush=True)


def pause(
    containers: options.Containers,
    free: Annotated[bool, typer.Option("--free", help="Move their GPU memory to host memory, which frees it.")] = False,
    why: Note = "",
) -> None:
    """Pause containers. They keep their GPU memory unless --free is given."""
    more = {"free_memory": True} if free else {}
    _for_each(containers, lambda client, it: client.act(it, "pause", note=why, **more))


def resume(containers: options.Containers, why: Note = "") -> None:
    """Resume paused containers."""
    _for_each(containers, lambda client, it: client.act(it, "resume", note=why), _resumed)


def move(
    containers: options.Containers,
    gpu: Annotated[str, typer.Option(metavar="GPU", help="Target GPU of their host: number or UUID.")],
    leaves: Annotated[str, typer.Option("--from", metavar="GPU", help="The GPU that they leave, if several.")] = "",
    why: Note = "",
) -> None:
    """Move containers to another GPU of their host. Their programs continue there."""
    words = {"gpu": gpu, "leaves": leaves}

    def to(client: Client, it: Json) -> Json:
        there = list(client.each("gpus/", page_size=PAGE))
        chosen = {name: cards.chosen(there, [word], it["node"])[0]["uuid"] for name, word in words.items() if word}
        return client.act(it, "move", note=why, **chosen)

    _for_each(containers, to, lambda container: str(container["message"]))


def kill(
    containers: Some = None,
    filters: options.Filters = None,
    grace: Annotated[float, typer.Option(metavar="SECONDS", help="Time between the stop signal and SIGKILL.")] = 0.0,
    why: Note = "",
) -> None:
    """Kill containers."""
    words = _chosen(containers, filters)
    _for_each(words, lambda client, it: client.act(it, "kill", grace=grace, note=why))


def _chosen(words: list[str] | None, filters: list[str] | None) -> list[str]:
    """Those that were named, or those that match. Raises Problem unless it is one of both."""
    if bool(words) == bool(filters):
        raise Problem("name containers, or give --filter", code="usage", hint="gpushare ps lists them")
    if words:
        return words
    if found := [each["id"] for each in views.matching(connect(), filters or []) if each["finished_at"] is None]:
        return found
    raise Problem("no container matches", code="not_found", hint="gpushare ps lists them")


def stop(
    containers: Some = None,
    filters: options.Filters = None,
    grace: Annotated[float, typer.Option(metavar="SECONDS", help="Time between the stop signal and SIGKILL.")] = 10.0,
    why: Note = "",
) -> None:
    """Stop containers. They get the image's stop signal, and are killed after the grace period."""
    kill(containers, filters, grace, why)


def rm(
    containers: options.Containers,
    force: Annotated[bool, typer.Option("-f", "--force", help="Kill running containers first.")] = False,
) -> None:
    """Remove ended containers. Their history stays in the reports."""

    def remove(client: Client, container: Json) -> Json:
        if force and container["finished_at"] is None:
            client.act(container, "kill", grace=0)
        return client.remove(container)

    _for_each(containers, remove, lambda container: "removed")


def change(
    containers: options.Containers,
    gpu_memory: Annotated[
        str | None,
        typer.Option("--gpu-memory", "--nvidia-memory", metavar="SIZE", help="New quota on each of its GPUs."),
    ] = None,
    priority: Annotated[int | None, typer.Option(help="New priority.")] = None,
    compute_weight: Annotated[
        int | None, typer.Option(metavar="1-1000", help="New share of GPU time among your containers.")
    ] = None,
    compute_limit: Annotated[
        str | None, typer.Option(metavar="PERCENT|none", help="New limit of GPU time; none: no limit.")
    ] = None,
) -> None:
    """Change quota, priority and compute share of containers."""
    fields = {"gpu_memory": gpu_memory, "priority": priority, "compute_weight": compute_weight}
    given: Json = {field: value for field, value in fields.items() if value is not None}
    if compute_limit is not None:
        given["compute_limit"] = options.percent(compute_limit)
    if not given:
        hint = "give --gpu-memory SIZE, --priority N, --compute-weight N or --compute-limit PERCENT"
        raise Problem("nothing to set", code="usage", hint=hint)
    _for_each(containers, lambda client, it: client.change(it, **given), _settings)


def _state(container: Json) -> str:
    return str(container["state"])


def _settings(container: Json) -> str:
    quotas = ", ".join(size(gpu["quota"]) for gpu in container["gpus"])
    weight, limit = container["compute_weight"], container["compute_limit"]
    share = (f", weight {weight}" if weight != USUAL_WEIGHT else "") + (f", limit {limit} %" if limit else "")
    return f"quota {quotas}, priority {container['priority']}{share}"


def _resumed(it: Json) -> str:
    """Of one that is not back yet what the scheduler says: its state is what it was."""
    return f"swapped. {it.get('message', '')}" if it["state"] == "swapped" else _state(it)


def _for_each(words: list[str], act: Callable[[Client, Json], Json], tell: Callable[[Json], str] = _state) -> None:
    client = connect()
    show_each(words, lambda word: act(client, client.container(word)), lambda it: f"{it['name']}: {tell(it)}")


def doctor() -> None:
    """Check this host: what is wrong, and what to do. Only on the appliance's host."""
    if not MANAGE.exists():
        hint = "run it on the appliance's host"
        raise Problem("only the command line is installed here", code="usage", hint=hint)
    # Asks nobody over REST: the appliance may be down.
    os.execv(sys.executable, [sys.executable, str(MANAGE), "doctor", *(["--json"] if output.as_json else [])])
