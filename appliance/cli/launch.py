"""`gpushare run`: the options people know from `docker run`, as the fields of a launch. `attach`, to come back;
`exec`, for one more program in it."""

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

from appliance.cli import cards, options, output, planning
from appliance.cli.attach import LOOK, PATIENCE, Attachment, exit_code
from appliance.cli.client import PAGE, Client, Json, Pending
from appliance.cli.console import Console
from appliance.cli.errors import REFUSED, Problem
from appliance.cli.options import connect
from appliance.cli.output import note, note_json, show
from appliance.flags import flag

Words = dict[str, Any]
StopTimeout = Annotated[float, typer.Option(metavar="SECONDS", help="Time between Ctrl-C's stop signal and SIGKILL.")]

OURS = ("detach", "stop_timeout", "as_json")  # what `run` has that is no field of a launch
ON = ("give_way", "init")  # switches that are on unless one says otherwise

NO_TERMINAL = Problem("input is not a terminal", code="no_terminal", hint="use -i without -t")


def _option(field: str, *more: str, **about: Any) -> Any:
    """The option for a field of a launch that has a name of its own, or several."""
    return typer.Option(flag(field), *more, **about)


def run(
    context: typer.Context,
    image: Annotated[str, typer.Argument(metavar="IMAGE", help="Image; with local processes: local.")],
    command: Annotated[list[str] | None, typer.Argument(help="Command and its arguments.", metavar="COMMAND")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the container.")] = None,
    env: Annotated[
        list[str] | None,
        _option("env", "--env", metavar="NAME=VALUE", help="Variable; NAME alone copies your value."),
    ] = None,
    working_dir: Annotated[
        str | None, _option("working_dir", "-w", metavar="FOLDER", help="Working directory in the container: /work.")
    ] = None,
    user: Annotated[
        str | None,
        typer.Option("--user", "-u", metavar="UID[:GID]", help="User of its programs: 1000, or a name in the image."),
    ] = None,
    init: Annotated[
        bool,
        typer.Option(f"--init/{flag('init')}", help="Start a first process that reaps orphans and forwards signals."),
    ] = True,
    volumes: Annotated[
        list[str] | None,
        _option("volumes", "--volume", metavar="FROM:TO[:ro]", help="Folder of the host, or named volume."),
    ] = None,
    ports: Annotated[
        list[str] | None,
        _option("ports", "--publish", metavar="HOST:INSIDE", help="Port of the host, and of the container."),
    ] = None,
    remove_when_done: Annotated[bool, _option("remove_when_done", help="Remove the container when it ends.")] = False,
    restart: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Restart policy in a Swarm: on-failure, on-failure:3, always.")
    ] = None,
    detach: Annotated[bool, typer.Option("-d", "--detach", help="Print the id and exit.")] = False,
    interactive: Annotated[bool, _option("interactive", "--interactive", help="Pass input to the container.")] = False,
    tty: Annotated[bool, _option("tty", "--tty", help="Allocate a terminal.")] = False,
    memory: Annotated[
        str | None, _option("memory", "-m", metavar="SIZE", help="Limit of host memory: 512m, 8GiB.")
    ] = None,
    shm_size: Annotated[str | None, typer.Option(metavar="SIZE", help="Size of /dev/shm, out of that: 8GiB.")] = None,
    cpus: Annotated[float | None, typer.Option(help="Limit of processor cores.")] = None,
    gpu_memory: Annotated[
        str | None,
        _option(
            "gpu_memory",
            "--nvidia-memory",
            metavar="SIZE",
            help="Quota on each GPU: 4GiB; else the image's label, else 1GiB. See: gpushare peak.",
        ),
    ] = None,
    gpus: Annotated[str | None, typer.Option(metavar="N|all|UUID,...", help="How many GPUs, or which ones.")] = None,
    node: Annotated[str | None, typer.Option(metavar="NODE", help="Host; default: chosen by the appliance.")] = None,
    constraints: Annotated[
        list[str] | None,
        _option("constraints", metavar="CONSTRAINT", help="Condition on the host: node.labels.disk==ssd, node!=gpu3."),
    ] = None,
    priority: Annotated[int | None, typer.Option(help="Higher priorities get memory first.")] = None,
    compute_weight: Annotated[
        int | None, typer.Option(metavar="1-1000", help="Share of GPU time among your containers; default: 100.")
    ] = None,
    compute_limit: Annotated[
        str | None, typer.Option(metavar="PERCENT|none", help="Limit of GPU time, also without contention.")
    ] = None,
    app: Annotated[
        str | None, typer.Option(metavar="PORT/PATH", help="Page that gpushare open shows, such as 8888/lab.")
    ] = None,
    on_shortage: Annotated[
        bool | None, _option("on_shortage", help="When memory is short: wait, or get an out-of-memory error.")
    ] = None,
    max_wait_seconds: Annotated[
        str | None,
        _option("max_wait_seconds", metavar="DURATION", help="Longest wait of one call for memory: 90s, 10m."),
    ] = None,
    ttl_seconds: Annotated[
        str | None, _option("ttl_seconds", metavar="DURATION", help="Kill it after this time: 90s, 15m, 2h.")
    ] = None,
    notify: Annotated[
        str | None, typer.Option(metavar="WORDS|none", help="Notify me when it: goes_on,ended,killed,gives_way.")
    ] = None,
    guaranteed: Annotated[bool, typer.Option("--guaranteed", help="Reserve the whole quota from the start.")] = False,
    give_way: Annotated[
        bool,
        typer.Option(f"--give-way/{flag('give_way')}", help="Move its GPU memory to host memory for others, or never."),
    ] = True,
    movable: Annotated[
        bool,
        typer.Option("--movable", help="Let NCCL's ranks on several GPUs be moved to host memory; a little slower."),
    ] = False,
    queue: Annotated[
        bool, typer.Option("--queue", help="Start it when its whole quota is free; print its name and exit.")
    ] = False,
    after: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[:ok|any|failed]", help="Start it after NAME has ended; repeatable."),
    ] = None,
    begin_at: Annotated[str | None, typer.Option(metavar="TIME", help="Not before: 2027-01-31T20:00Z.")] = None,
    hold: Annotated[bool, typer.Option("--hold", help="Hold it until it is released.")] = False,
    sweep: Annotated[
        str | None, typer.Option(metavar="[NAME=]A,B,...|N", help="One run for each value, {value} or {NAME}; {i}.")
    ] = None,
    at_once: Annotated[int | None, typer.Option(metavar="N", help="Runs of a sweep at once.")] = None,
    retries: Annotated[int | None, typer.Option(help="Further attempts of a run that fails.")] = None,
    retry_pause: Annotated[str | None, typer.Option(metavar="DURATION", help="Pause before each; default: 1m.")] = None,
    stop_timeout: StopTimeout = 10.0,
) -> None:
    """Launch a container and show its output. Exits with its exit code. Ctrl-C stops it, except with -it."""
    if interactive and tty and not detach and not os.isatty(0):
        raise NO_TERMINAL
    client = connect()
    body = _body(context.params, client)
    if not body.keys().isdisjoint(planning.FIELDS):
        show(client.launch(body, lambda command: None), planning.said)
        return
    if detach:
        container = client.launch(body, lambda command: None)
        show(container, lambda it: str(it["id"]))
        return
    console = Console(client, interactive=interactive, tty=tty) if interactive or tty else None
    _follow(client, lambda pending: client.launch(body, pending), console, stop_timeout)


def attach(container: options.Container, stop_timeout: StopTimeout = 10.0) -> None:
    """Attach to a container that was launched with -i or -t. Ctrl-P Ctrl-Q leaves it running."""
    client = connect()
    found = client.container(container)
    interactive, tty = found["interactive"], found["tty"]
    if interactive and tty and not os.isatty(0):
        raise NO_TERMINAL
    _follow(client, lambda pending: found, Console(client, interactive=interactive, tty=tty), stop_timeout)


def execute(
    container: options.Container,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="CMD", help="Default: a shell, as with -it.", show_default=False)
    ] = None,
    interactive: Annotated[bool, typer.Option("-i", "--interactive", help="Pass input to it.")] = False,
    tty: Annotated[bool, typer.Option("-t", "--tty", help="Allocate a terminal.")] = False,
) -> None:
    """Start a program in a running container, under its quota. The program ends with this command."""
    if not command:
        interactive = tty = True
    if interactive and tty and not os.isatty(0):
        raise NO_TERMINAL
    client = connect()
    with Console(client, interactive=interactive, tty=tty, command=command or []) as console:
        # In a thread: a signal comes at any moment, also while this one holds the connection's lock.
        signal.signal(signal.SIGWINCH, lambda *_: threading.Thread(target=console.resize, daemon=True).start())
        console.pass_on(client.container(container))
    raise typer.Exit(REFUSED if console.exit_code is None else console.exit_code)


def _follow(client: Client, launch: Callable[[Pending], Words], console: Console | None, grace: float) -> NoReturn:
    attachment = Attachment(client, launch, _say_json if output.as_json else _say, grace=grace, console=console)
    raise typer.Exit(attachment.follow())


def _say(what: str, line: str, container: Words) -> None:
    note(line)


def _say_json(what: str, line: str, container: Words) -> None:
    """On stderr, so that stdout holds what the container writes and nothing else."""
    note_json(event=what, message=line, container=container)


def _body(given: Words, client: Client) -> Words:
    """The launch over REST: a parameter of `run` is the field of its name; what was not given is left out."""
    body = {field: value for field, value in given.items() if field not in OURS}
    body |= {
        "env": _environment(given["env"] or []),
        "gpus": given["gpus"] and _gpus(given["gpus"], client, given["node"]),
        "compute_limit": given["compute_limit"] and options.percent(given["compute_limit"]),
        "on_shortage": {True: "wait", False: "fail"}.get(given["on_shortage"]),
        "max_wait_seconds": options.duration("max_wait_seconds", given["max_wait_seconds"]),
        "ttl_seconds": options.duration("ttl_seconds", given["ttl_seconds"]),
        "retry_pause": options.duration("retry_pause", given["retry_pause"]),
    }
    nothing: tuple[Any, ...] = ([], (), {})
    return {
        field: value
        for field, value in body.items()
        if value is not None and value is not (field in ON) and value not in nothing  # 0 was given
    }


def _environment(variables: list[str]) -> dict[str, str]:
    """NAME=VALUE; NAME alone takes its value from here, and is left out if it has none, as with docker."""
    parts = [variable.partition("=") for variable in variables]
    pairs = [(name, value if given else os.environ.get(name)) for name, given, value in parts]
    return {name: value for name, value in pairs if value is not None}


def _gpus(text: str, client: Client, node: str | None) -> int | list[str]:
    """A number counts GPUs; `all` and `device=0,1` (an index or a UUID each) mean these very ones, as with docker."""
    text = text.strip("\"'")
    if text.isdecimal():
        return int(text)
    known = cards.chosen(client.each("gpus/", page_size=PAGE), [], node)
    if text == "all":
        if node is None and len({gpu["node"] for gpu in known}) > 1:
            raise Problem("--gpus all means the GPUs of one node", code="usage", hint="name it: --node NODE")
        return [gpu["uuid"] for gpu in known]
    names = {name for gpu in known for name in (str(gpu["index"]), cards.named(gpu))}
    words = [word for word in text.removeprefix("device=").split(",") if word]
    return [cards.chosen(known, [word])[0]["uuid"] if word in names else word for word in words]


def wait(containers: options.Containers) -> None:
    """Wait for containers to end. Prints their exit codes, and exits with the last one."""
    client = connect()
    code = 0
    for identity in [client.container(word)["id"] for word in containers]:
        ended = _end_of(client, identity)
        code = exit_code(ended)
        show(ended, lambda ended: str(exit_code(ended)))
    raise typer.Exit(code)


def _end_of(client: Client, identity: str) -> Json:
    """An appliance that is away for less than a minute is waited for: programs go on meanwhile."""
    heard = time.monotonic()
    while True:
        try:
            container = client.fetch(identity)
        except Problem as problem:
            if not problem.away or time.monotonic() - heard > PATIENCE:
                raise
        else:
            heard = time.monotonic()
            if container["finished_at"] is not None:
                return container
        time.sleep(LOOK)
