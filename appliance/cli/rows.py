"""What a line about a container, a waiting one or a card says: the same in a list and on the screen of `top`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from appliance.cli.client import Json
from appliance.cli.text import age, clock, moment, ordinal, size

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
    further["NODE"] = any(each.get("node_reason") for each in containers) or len(_nodes(containers)) > 1
    for head in [head for head, shown in further.items() if shown]:
        heads = (*heads, head)
        rows = [(*row, each.get(head.lower()) or "-") for row, each in zip(rows, containers, strict=True)]
    return heads, rows


def _nodes(containers: Sequence[Json]) -> set[str]:
    return {each.get("node") or "" for each in containers}


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
