"""The commands that look: containers, queue, GPUs, the policy, oneself; and whether more would fit."""

import signal
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from appliance.cli import cards, options, output, planning
from appliance.cli.client import PAGE, Client, Json
from appliance.cli.errors import Problem
from appliance.cli.options import connect
from appliance.cli.output import show
from appliance.cli.rows import (
    CONTAINER_KEYS,
    GPU_HEADS,
    QUEUE_HEADS,
    QUEUE_KEYS,
    STATS_HEADS,
    STATS_KEYS,
    container_rows,
    event_line,
    gpu_row,
    in_order,
    queue_row,
    stats_row,
)
from appliance.cli.rows import only as select
from appliance.cli.text import day_or_time, size, table

QUEUE_FILTERS = ("owner", "name", "node")
EVERY = 1.0  # seconds between two looks for events
Rows = tuple[Sequence[str], Sequence[Sequence[str]]]  # heads, and what stands beneath them
FILTERS = ("state", "owner", "name", "image", "namespace", "gpu", "node", "planned")  # REST's


class Compute(StrEnum):
    TURNS = "turns"
    SHARED = "shared"


def ps(
    every: Annotated[bool, typer.Option("-a", "--all", help="Include ended containers.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print ids only.")] = False,
    filters: options.Filters = None,
    node: Annotated[str | None, typer.Option(metavar="NODE", help="Only containers on this node.")] = None,
    sort: options.Sort = None,
    form: options.Form = None,
) -> None:
    """List running containers."""
    client = connect()
    found = matching(client, [*(filters or []), *([f"node={node}"] if node else [])], every=every)
    found = in_order(found, sort, CONTAINER_KEYS)
    if quiet:
        for container in found:
            print(container["id"])
        return
    _shaped(found, form, lambda: container_rows(found, client.now(), _cards(client, None)))


def matching(client: Client, filters: list[str], *, every: bool = False) -> list[Json]:
    """The containers that live, or all, by `filters` (NAME=VALUE). Raises Problem."""
    only = _filters(filters)
    if "gpu" in only:
        only["gpu"] = _cards(client, [only["gpu"]], only.get("node"))[0]["uuid"]
    try:  # a state says itself whether it is an end
        return list(client.containers(every=every or "state" in only, **only))
    except Problem as problem:
        problem.field = problem.field and "filter"  # REST's name for it is no option
        raise


def _shaped(found: list[Json], form: str | None, rows: Callable[[], Rows], none: str = "") -> None:
    """As a table, of some columns if `form` names them; as JSON, or one object a line if it is json."""
    if form == "json":
        for each in found:
            output.show_json(each)
    elif form:
        show(found, lambda _: table(*select(*rows(), form)))
    else:
        show(found, lambda _: table(*rows()) if found or not none else none)


def inspect(containers: options.Containers) -> None:
    """Print all fields of containers, as JSON."""
    client = connect()
    for word in containers:
        output.show_json(client.container(word))


def _filters(words: list[str], known: Sequence[str] = FILTERS) -> dict[str, str]:
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in known or name in found:
            hint = f"write --filter NAME=VALUE, each of {', '.join(known)} once at most"
            raise Problem(f"--filter {word} cannot be used", code="usage", hint=hint)
        found[name] = value
    return found


def queue(
    planned: Annotated[
        bool, typer.Option("--planned", help="Launches that begin later, and what each waits for.")
    ] = False,
    filters: Annotated[
        list[str] | None, typer.Option("-f", "--filter", metavar="NAME=VALUE", help="Filter by owner, name or node.")
    ] = None,
    sort: options.Sort = None,
    form: options.Form = None,
) -> None:
    """List waiting containers in order, with the reason."""
    client = connect()
    if planned:
        planning.list_planned(client)
        return
    wanted = _filters(filters or [], QUEUE_FILTERS)
    waiting = [each for each in client.each("queue/") if all(each[name] == value for name, value in wanted.items())]
    waiting = in_order(waiting, sort, QUEUE_KEYS)
    several = not output.as_json and client.get("nodes/", page_size=1)["count"] > 1
    rows = _queue_rows(waiting, client.now(), several=several)
    _shaped(waiting, form, lambda: rows, "No container waits for GPU memory.")


def _queue_rows(waiting: list[Json], now: datetime, *, several: bool) -> Rows:
    """With the node where there are several: each serves its own, in its order."""
    rows = [queue_row(entry, now) for entry in waiting]
    if not several:
        return QUEUE_HEADS, rows
    heads = (*QUEUE_HEADS[:-1], "NODE", QUEUE_HEADS[-1])
    return heads, [(*row[:-1], entry["node"] or "-", row[-1]) for row, entry in zip(rows, waiting, strict=True)]


def stats(filters: options.Filters = None, sort: options.Sort = None, form: options.Form = None) -> None:
    """Show what running containers use of GPU, processors and RAM."""
    client = connect()
    found = in_order(matching(client, filters or []), sort, STATS_KEYS)
    _shaped(found, form, lambda: (STATS_HEADS, [stats_row(each) for each in found]))


def events(
    since: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="2026-11-01, or how long ago: 1h.")
    ] = None,
    owner: Annotated[str | None, typer.Option(metavar="USER", help="Only containers of this user.")] = None,
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="Only this: started, ended, killed.")] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Wait for more, until Ctrl-C.")] = True,
) -> None:
    """Print events of containers as they happen."""
    client = connect()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    asked = {name: value for name, value in (("owner", owner), ("kind", kind)) if value}
    try:
        begin = day_or_time(since, client.now()) if since else client.now().isoformat()
    except ValueError as error:
        raise Problem(f"--from: {error}", code="usage") from None
    last = 0  # events are numbered; two may be of one time
    while True:
        for event in client.each("allocations/", ordering="at", page_size=PAGE, **asked, **{"from": begin}):
            if event["id"] > last:
                show(event, lambda row: event_line(row, client.now()))
                begin, last = event["at"], event["id"]
        if not follow:
            return
        time.sleep(EVERY)


def gpus(
    chosen: Annotated[list[str] | None, typer.Argument(metavar="GPU", help="Numbers or UUIDs; default: all.")] = None,
    compute: Annotated[
        Compute | None, typer.Option(help="Admins: how containers share computing: in turns, or as the driver does.")
    ] = None,
    drain: Annotated[
        bool, typer.Option("--drain", help="Admins: take them out of service; containers keep running.")
    ] = False,
    undrain: Annotated[bool, typer.Option("--undrain", help="Admins: put them back into service.")] = False,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="With --drain or --undrain: why.")] = "",
    node: Annotated[str | None, typer.Option(metavar="NODE", help="Only GPUs of this node.")] = None,
) -> None:
    """List GPUs: capacity, memory promised and in use, load. Admins: take them out of service."""
    if drain and undrain:
        raise Problem("--drain and --undrain exclude each other", code="usage")
    if (drain or undrain) and not chosen:
        raise Problem("a GPU is missing", code="usage", hint="gpushare gpus 1 --drain --reason TEXT")
    if reason and not (drain or undrain):
        raise Problem("--reason is for --drain and --undrain", code="usage")
    client = connect()
    found = _cards(client, chosen, node)
    if drain or undrain:
        for card in found:
            done = {"gpu": card["index"], **client.drain_gpu(card["uuid"], "drain" if drain else "undrain", reason)}
            show(done, lambda done: str(done["message"]))
        return
    if compute is not None:
        for card in found:
            done = {"gpu": card["index"], **client.set_compute(card["uuid"], compute.value)}
            show(done, lambda done: "GPU {gpu}: {message}".format(**done))
        return
    show(found, _card_table)


def _card_table(found: list[Json]) -> str:
    if len({card["node"] for card in found}) < 2:
        return table(GPU_HEADS, [gpu_row(card) for card in found])
    return table((*GPU_HEADS, "NODE"), [(*gpu_row(card), card["node"]) for card in found])


def _cards(client: Client, words: list[str] | None, node: str | None = None) -> list[Json]:
    """Those of these names (cards.py), or all. Raises Problem."""
    return cards.chosen(client.each("gpus/", page_size=PAGE), words or [], node)


def whoami() -> None:
    """Show your account and the use of your allowance."""
    client = connect()
    show({"url": client.url, **client.get("me/")}, _me)


def _me(me: Json) -> str:
    used, most = me["usage"], me["limits"]
    rows = [
        ("GPU memory", size(used["gpu_memory"]), _most(most["gpu_memory"], size)),
        ("containers", str(used["containers"]), _most(most["containers"], str)),
        ("GiB·hours in seven days", f"{used['gib_hours']:.2f}", _most(most["gib_hours"], "{:.2f}".format)),
    ]
    return f"{me['username']} ({me['role']}) on {me['url']}\n" + table(("", ">IN USE", ">AT MOST"), rows)


def _most(limit: Any, words: Callable[[Any], str]) -> str:
    return "-" if limit is None else words(limit)


def policy(
    name: Annotated[str | None, typer.Argument(metavar="POLICY", help="Admins: use this policy from now on.")] = None,
) -> None:
    """Show or choose the policy: who gets free GPU memory first."""
    client = connect()
    if name is not None:
        show(client.set_policy(name), lambda done: str(done["message"]))
        return
    show(client.get("policy/"), _policies)


def _policies(answer: Json) -> str:
    here = answer["policy"]
    rows = [("*" if each["name"] == here else "", each["name"], each["explanation"]) for each in answer["policies"]]
    return table(("", "POLICY", "WHO IS FIRST"), rows)


def forecast(
    gpu_memory: Annotated[
        str, typer.Option("--gpu-memory", "--nvidia-memory", metavar="SIZE", help="Quota on each GPU: 4GiB.")
    ],
    gpus: Annotated[int, typer.Option(min=1, help="Number of GPUs.")] = 1,
    priority: Annotated[int, typer.Option(help="Priority.")] = 0,
    node: Annotated[str, typer.Option(metavar="NODE", help="Node; default: where the launch would go.")] = "",
    constraints: Annotated[
        list[str] | None, typer.Option("--constraint", metavar="CONSTRAINT", help="As for run.")
    ] = None,
    ttl: Annotated[
        str | None, typer.Option("--ttl", metavar="DURATION", help="Time limit: ignore what begins later.")
    ] = None,
) -> None:
    """Check whether a launch would fit now. If not: what it would wait for, and exit code 1."""
    client = connect()
    asks = ",".join(constraints or ())
    lasts = {} if ttl is None else {"ttl_seconds": round(options.duration("ttl_seconds", ttl) or 0)}
    answer = client.get(
        "forecast/", gpu_memory=gpu_memory, gpus=gpus, priority=priority, node=node, constraints=asks, **lasts
    )
    why = "" if node else str(answer["node_reason"])
    show(answer, lambda answer: _by_number(client, str(answer["message"]), answer["node"], why))
    if answer["fits"] is False:
        raise typer.Exit(1)


def _by_number(client: Client, text: str, node: str, why: str) -> str:
    """The scheduler names GPUs by UUID; people read their numbers, and the node where there are several, and why."""
    found = list(client.each("gpus/", page_size=PAGE))
    for card in found:
        text = text.replace(card["uuid"], str(card["index"]))
    if not node or len({card["node"] for card in found}) < 2:
        return text
    return f"Would go to {node}. {why} {text}" if why else f"On {node}: {text}"


def top(
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    interval: Annotated[float, typer.Option(min=0.2, metavar="SECONDS", help="Time between updates.")] = 1.0,
) -> None:
    """Watch GPUs, containers and the queue. Keys sort, filter and kill; h lists them."""
    from appliance.cli.top.watching import watch

    watch(connect(), once=once, interval=interval)
