"""What Prometheus gets, read from the database at each scrape.

One reading, in four queries, and no state: what a scheduler counts of its own work comes with its sign of life
(`Node.figures`), so nobody asks the process that decides, and a killed one leaves what it last said. A live container
has its series and an ended one has none, so there are never more than what runs; process ids are no label.

Names, units and suffixes are those of https://prometheus.io/docs/practices/naming: bytes, seconds, ratios of 0 to 1.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db.models import Sum
from django.utils import timezone

from web.live.openmetrics import Family, gauge, labels
from web.models import AllocationEvent, Claim, Container, Gpu, Node, State
from web.models.states import ENDED, place_of_state

CLAIMS = (  # kind, name, column, what it is
    ("gauge", "memory_quota_bytes", "quota", "The most GPU memory that the container may hold."),
    ("gauge", "memory_granted_bytes", "granted", "What its processes may hold without asking."),
    ("gauge", "memory_used_bytes", "used", "What its processes hold, CUDA contexts included."),
    ("gauge", "memory_peak_bytes", "peak", "The most that it has held so far."),
    ("counter", "compute_seconds", "had", "Time that it computed, as far as that is known."),
    ("counter", "compute_due_seconds", "due", "Time of turns that its weight and limit gave it."),
    ("counter", "compute_held_back_seconds", "held_back", "Time that it waited for its turn."),
)
GPUS = (  # name, column, what one of its unit is, what it is
    ("memory_size_bytes", "total", 1, "What the card has, or the cap set by configuration."),
    ("memory_capacity_bytes", "capacity", 1, "What containers may hold together: without reserve and foreign memory."),
    ("memory_free_bytes", "free", 1, "Capacity that is neither held nor reserved."),
    ("memory_real_bytes", "real", 1, "In use, by NVML."),
    ("memory_foreign_bytes", "foreign", 1, "In use, but by no session."),
    ("utilisation_ratio", "utilisation", 0.01, "How much of the time the card computes."),
    ("temperature_celsius", "temperature", 1, "Temperature of the card."),
    ("power_watts", "power", 1, "Power that the card draws."),
)
SUMS = (  # name, column of the claims there, what their sum is
    ("memory_charged_bytes", "used", "What containers hold by our account."),
    ("memory_promised_bytes", "quota", "The quotas of the containers there, together."),
    ("memory_unexplained_bytes", "unexplained", "Held by containers past the shim; a part of what is foreign."),
    ("memory_waiting_bytes", "waiting", "Memory of this card that waiting calls ask for."),
)
HISTOGRAMS = (  # name, key in Node.figures, what it is
    ("wait_seconds", "waits", "Waits for GPU memory that have ended."),
    ("decision_seconds", "decisions", "Time to decide about one event and to carry it out."),
    ("loop_late_seconds", "lateness", "Delay of the scheduler's loop."),
)
STATES = list(State)
LIVE = [state for state in STATES if state not in ENDED]
BEHIND = ("events", "rows", "samples")
WORK = {  # what every scheduler tells of its own
    "events", "turns", "calls", "failures", "events_written",
    *(f"{kind}_behind" for kind in BEHIND), *(key for _, key, _ in HISTOGRAMS),
}  # fmt: skip


def read() -> Iterator[Family]:
    nodes = list(Node.objects.listed().order_by("pk"))
    names = {node.pk: node.name for node in nodes}
    yield from _nodes(nodes)
    yield from _work([(labels(node=node.name), node.figures) for node in nodes if _are_whole(node.figures)])
    yield from _gpus(names)
    yield from _containers(names)


def _are_whole(figures: Mapping[str, Any]) -> bool:
    """Whoever has stolen a host says of its scheduler what they like, and the others' figures are still shown."""
    if not figures.keys() >= WORK:
        return False
    histograms = [figures[key] for _, key, _ in HISTOGRAMS]
    return all(len(each["counts"]) == len(each["bounds"]) + 1 for each in histograms)


def _nodes(nodes: Sequence[Node]) -> Iterator[Family]:
    by = {labels(node=node.name): node for node in nodes}
    yield gauge("gpushare_scheduler_up", "Whether the scheduler gives signs of life: 1 or 0.",
                {own: int(node.is_alive()) for own, node in by.items()})  # fmt: skip
    yield gauge("gpushare_scheduler_seen_timestamp_seconds", "Its last sign of life.",
                {own: _epoch(node.seen_at) for own, node in by.items()})  # fmt: skip
    yield gauge("gpushare_scheduler_start_timestamp_seconds", "When it was started.",
                {own: _epoch(node.started_at) for own, node in by.items()})  # fmt: skip
    yield gauge("gpushare_engine_up", "Whether the engine answers the scheduler: 1 or 0.",
                {own: int(not node.engine_error) for own, node in by.items()})  # fmt: skip
    yield gauge("gpushare_engine_outdated", "Parts of the engine with known vulnerabilities.",
                {own: len(node.outdated) for own, node in by.items()})  # fmt: skip
    info = Family("info", "gpushare_node", "What the host runs.")
    for node in nodes:
        about = {"engine": node.engine, "policy": node.policy, "driver": node.driver}
        info.add(labels(node=node.name, **about, simulated=str(node.simulated).lower()))
    yield info


def _work(reports: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[Family]:
    """What schedulers count of their own work, since they were started."""
    for name, key, help_ in HISTOGRAMS:
        histogram = Family("histogram", f"gpushare_{name}", help_)
        for own, figures in reports:
            found = figures[key]
            histogram.add_histogram(own, found["bounds"], found["counts"], found["sum"])
        yield histogram
    events = Family("counter", "gpushare_events", "What happened to containers and their memory.")
    swaps = Family("counter", "gpushare_swaps", "Times that a container's memory on a card went out, or came back in.")
    turns = Family("counter", "gpushare_turns", "Turns of computing that containers were given.")
    calls = Family("counter", "gpushare_engine_calls", "Calls to the engine.")
    failures = Family("counter", "gpushare_engine_failures", "Calls to the engine that failed.")
    written = Family("counter", "gpushare_events_written", "Events in the audit log.")
    behind = Family("gauge", "gpushare_store_behind", "Records that are not in the database yet.")
    for own, figures in reports:
        for kind in AllocationEvent.Kind.values:
            events.add(f"{own},{labels(kind=kind)}", figures["events"].get(kind, 0))
        for direction in ("out", "in"):
            swaps.add(f"{own},{labels(direction=direction)}", figures["events"].get(f"swapped_{direction}", 0))
        turns.add(own, figures["turns"])
        for call, count in figures["calls"].items():
            calls.add(f"{own},{labels(call=call)}", count)
        for call, why, count in figures["failures"]:
            failures.add(f"{own},{labels(call=call, reason=why)}", count)
        written.add(own, figures["events_written"])
        for kind in BEHIND:
            behind.add(f"{own},{labels(kind=kind)}", figures[f"{kind}_behind"])
    yield from (events, swaps, turns, calls, failures, written, behind)


def _gpus(nodes: Mapping[int, str]) -> Iterator[Family]:
    columns = [column for _, column, *_ in GPUS]
    gpus = list(Gpu.objects.filter(present=True).values("pk", "node_id", "uuid", "index", "name", *columns))
    by = {labels(node=nodes.get(gpu["node_id"], ""), gpu=gpu["uuid"]): gpu for gpu in gpus}
    of_live = Claim.objects.filter(container__finished_at=None).order_by().values("gpu")
    summed = of_live.annotate(**{f"sum_{column}": Sum(column) for _, column, _ in SUMS})
    sums: dict[int, Mapping[str, Any]] = {row["gpu"]: dict(row) for row in summed}
    info = Family("info", "gpushare_gpu", "Name and model of the card.")
    for own, gpu in by.items():
        info.add(f"{own},{labels(index=str(gpu['index']), name=gpu['name'])}")
    yield info
    for name, column, unit, help_ in GPUS:
        yield gauge(
            f"gpushare_gpu_{name}", help_,
            {own: None if gpu[column] is None else gpu[column] * unit for own, gpu in by.items()},
        )  # fmt: skip
    for name, column, help_ in SUMS:
        values = {own: sums.get(gpu["pk"], {}).get(f"sum_{column}", 0) for own, gpu in by.items()}
        yield gauge(f"gpushare_gpu_{name}", help_, values)


def _containers(nodes: Mapping[int, str]) -> Iterator[Family]:
    """Those that live, with what they hold on each card. One that no scheduler has taken up yet has the node ""."""
    now = timezone.now()
    by: dict[Any, str] = {}
    of_claims: list[str] = []
    claims: list[tuple[Any, ...]] = []
    states = Counter[tuple[str, State]]()
    queue = Counter(dict.fromkeys(nodes.values(), 0))
    info = Family("info", "gpushare_container", "Which container this is.")
    suspended = Family("counter", "gpushare_container_suspended_seconds", "Time that it waited for GPU memory.")
    swapped = Family("gauge", "gpushare_container_memory_swapped_bytes", "Its GPU memory that is in host memory.")
    # A row for each claim, or one without: of each column Django makes a value of its own, so there are few.
    for pk, name, owner, node_id, image, place, out, waits_since, waited, gpu, *figures in (
        Container.objects.live().order_by().annotate(place=place_of_state()).values_list(
            "pk", "name", "owner__username", "node_id", "image", "place", "swapped", "suspended_since",
            "suspended_seconds", "claims__gpu__uuid", *(f"claims__{column}" for _, _, column, _ in CLAIMS),
        )
    ):  # fmt: skip
        own = by.get(pk)
        if own is None:
            node = nodes.get(node_id, "")
            own = by[pk] = labels(node=node, container=name, owner=owner)
            states[node, STATES[place]] += 1
            queue[node] += waits_since is not None
            if waits_since is not None:
                waited += max(0.0, (now - waits_since).total_seconds())
            suspended.add(own, waited)
            swapped.add(own, out)
            info.add(f"{own},{labels(id=str(pk), image=image)}")
        if gpu is not None:
            of_claims.append(f'{own},gpu="{gpu}"')
            claims.append(tuple(figures))
    yield from (info, suspended, swapped)
    yield from _claims(of_claims, claims)
    yield gauge("gpushare_queue_length", "Containers that wait for GPU memory.",
                {labels(node=node): count for node, count in queue.items()})  # fmt: skip
    counts = {labels(node=node, state=state.value): states[node, state] for node in queue for state in LIVE}
    yield gauge("gpushare_containers", "Live containers by state.", counts)


def _claims(owns: Sequence[str], figures: Sequence[tuple[Any, ...]]) -> Iterator[Family]:
    """`figures`: of each claim those of CLAIMS, in their order."""
    for place, (kind, name, _, help_) in enumerate(CLAIMS):
        family = Family(kind, f"gpushare_container_{name}", help_)
        family.add_all(owns, [each[place] for each in figures])
        yield family


def _epoch(at: datetime | None) -> float | None:
    return at.timestamp() if at else None
