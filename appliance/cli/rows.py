"""What a line about a container, a waiting one or a card says: the same in a list and on the screen of `top`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any

from appliance.cli.client import Json
from appliance.cli.errors import Problem
from appliance.cli.text import age, clock, moment, ordinal, size

Keys = Mapping[str, Callable[[Json], Any]]


def _sum(figure: str) -> Callable[[Json], Any]:
    return lambda container: sum(gpu[figure] for gpu in container["gpus"])


# What a column sorts by.
CONTAINER_KEYS: Keys = {
    **{name: itemgetter(name) for name in ("id", "name", "owner", "image", "state")},
    **{figure: _sum(figure) for figure in ("used", "quota", "peak")},
    "age": lambda container: -moment(container["created_at"]).timestamp(),
}
QUEUE_KEYS: Keys = {
    "#": lambda entry: entry["position"] or 0,
    "name": itemgetter("name"),
    "owner": itemgetter("owner"),
    "needs": lambda entry: entry["bytes"] or 0,
    "since": itemgetter("since"),
}


def in_order(found: Iterable[Json], column: str | None, keys: Keys) -> list[Json]:
    """By this column, from the last if a - stands before it; as they came if there is none. Raises Problem."""
    if not column:
        return list(found)
    name = column.removeprefix("-").lower()
    if name not in keys:
        raise Problem(f"--sort {column}: no such column", code="usage", hint=f"one of {', '.join(keys)}")
    return sorted(found, key=keys[name], reverse=column.startswith("-"))


def only(heads: Sequence[str], rows: Sequence[Sequence[str]], columns: str) -> tuple[list[str], list[list[str]]]:
    """These columns, in this order. Raises Problem."""
    known = [head.lstrip("><").lower() for head in heads]
    wanted = [name.strip().lower() for name in columns.split(",")]
    if unknown := [name for name in wanted if name not in known]:
        raise Problem(f"--format {unknown[0]}: no such column", code="usage", hint=f"of {', '.join(known)}, or json")
    places = [known.index(name) for name in wanted]
    return [heads[place] for place in places], [[row[place] for place in places] for row in rows]


CONTAINER_HEADS = ("ID", "NAME", "OWNER", "IMAGE", "STATE", "GPU", ">USED", ">QUOTA", ">PEAK", "AGE")


def container_row(container: Json, now: datetime, numbers: Mapping[str, int]) -> tuple[str, ...]:
    """`numbers`: of GPUs, by UUID."""
    held = container["gpus"]
    return (
        container["id"][:8],
        container["name"],
        container["owner"],
        container["image"],
        state_words(container, now),
        ",".join(sorted(str(numbers.get(gpu["uuid"], "?")) for gpu in held)) or "-",
        size(sum(gpu["used"] for gpu in held)),
        size(sum(gpu["quota"] for gpu in held)),
        size(sum(gpu["peak"] for gpu in held)),
        age(container["created_at"], now),
    )


def container_rows(
    containers: Sequence[Json], now: datetime, gpus: Sequence[Json]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Heads and rows: with the namespace where any is of a Kubernetes cluster, and the node where there are several."""
    numbers = {gpu["uuid"]: gpu["index"] for gpu in gpus}
    heads: tuple[str, ...] = CONTAINER_HEADS
    rows: list[tuple[str, ...]] = [container_row(each, now, numbers) for each in containers]
    further = {"NAMESPACE": any(each.get("namespace") for each in containers)}
    nodes = {each.get("node") or "" for each in containers}
    further["NODE"] = any(each.get("node_reason") for each in containers) or len(nodes) > 1
    for head in [head for head, shown in further.items() if shown]:
        heads = (*heads, head)
        rows = [(*row, each.get(head.lower()) or "-") for row, each in zip(rows, containers, strict=True)]
    return heads, rows


def state_words(container: Json, now: datetime) -> str:
    """The state, and what one would ask next: how long and at which place, or with which exit code."""
    state = container["state"]
    if state == "suspended":
        place = f", {ordinal(container['queue_position'])}" if container["queue_position"] else ""
        return f"suspended {age(container['suspended_since'], now)}{place}"
    if state == "running" and any(gpu["held_back_lately"] for gpu in container["gpus"]):
        return f"running, {int(_share(container, now) + 0.5)} % in turns"  # halves up, as the pages have it
    if state == "running" and container["idle_since"]:
        return f"running, idle {age(container['idle_since'], now)}"
    if container.get("not_restored"):
        return f"{state}, cannot come back"
    if state == "swapped" and container["gave_way"]:
        return f"swapped, gave way to {container['gave_way_to']}"
    if container["exit_code"] is not None and state != "exited":
        return f"{state} ({container['exit_code']})"
    return str(state)


def _share(container: Json, now: datetime) -> float:
    """Percent that it computed of the last minute, or of its life if that is shorter.

    The mean over those of its GPUs that tell, as on its page.
    """
    known: list[float] = [gpu["had_lately"] for gpu in container["gpus"] if gpu["had_lately"] is not None]
    lived: float = (now - moment(container["started_at"])).total_seconds()
    return 100 / min(60.0, max(1.0, lived)) * sum(known) / max(1, len(known))


QUEUE_HEADS = (">#", "NAME", "OWNER", ">NEEDS", "SINCE", "WHY")


def queue_row(entry: Json, now: datetime) -> tuple[str, ...]:
    since = entry["since"]
    when = f"{clock(since, now)} ({age(since, now)})"
    needs = "a node" if entry.get("waits_for") == "node" else size(entry["bytes"])
    return (str(entry["position"] or "-"), entry["name"], entry["owner"], needs, when, entry["reason"])


GPU_HEADS = (">#", "NAME", "UUID", ">CAPACITY", ">CHARGED", ">FREE", ">REAL", ">FOREIGN", ">LOAD", "COMPUTE", "STATE")


def _service(card: Json) -> str:
    if not card["present"]:
        return "gone"
    return f"out of service: {card['drain_reason']}" if card["drained_at"] else "in service"


def gpu_row(card: Json) -> tuple[str, ...]:
    load = "-" if card["utilisation"] is None else f"{card['utilisation']} %"
    figures = (size(card[figure]) for figure in ("capacity", "charged", "free", "real", "foreign"))
    return (str(card["index"]), card["name"], card["uuid"], *figures, load, card["compute"], _service(card))


STATS_HEADS = ("NAME", "OWNER", ">GPU", ">CPUS", ">RAM", ">USED", ">QUOTA")
STATS_KEYS: Keys = {
    **{name: CONTAINER_KEYS[name] for name in ("name", "owner", "used", "quota")},
    "gpu": lambda container: max((gpu["utilisation"] or 0 for gpu in container["gpus"]), default=0),
    "cpus": lambda container: container["cpus_used"] or 0,
    "ram": lambda container: container["memory_used"] or 0,
}


def stats_row(container: Json) -> tuple[str, ...]:
    busy = [gpu["utilisation"] for gpu in container["gpus"] if gpu["utilisation"] is not None]
    cpus = container["cpus_used"]
    return (
        container["name"],
        container["owner"],
        f"{sum(busy) / len(busy):.0f} %" if busy else "-",
        "-" if cpus is None else f"{cpus:.1f}",
        size(container["memory_used"]),
        size(_sum("used")(container)),
        size(_sum("quota")(container)),
    )


def event_line(event: Json, now: datetime) -> str:
    bytes_ = size(event["bytes"]) if event["bytes"] else ""
    words = (clock(event["at"], now), event["kind"], event["name"], event["owner"], bytes_, event["detail"])
    return "  ".join(word for word in words if word)
