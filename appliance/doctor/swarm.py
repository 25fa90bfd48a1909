"""A Swarm, where this host's Docker is in one: whether it knows what the cards here have."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import docker as sdk
from django.conf import settings
from django.db import DatabaseError

from appliance.doctor import cards
from appliance.doctor.finding import Finding, fine, note, wrong
from scheduler.engines.base import EngineAway
from scheduler.engines.swarm import kinds
from scheduler.engines.swarm.manager import in_swarm, require_manager
from web.models import Gpu
from web.sizes import format_size

FILE = "/etc/docker/daemon.json"


def swarm() -> Iterator[Finding]:
    if settings.GPUSHARE_ENGINE == "process":
        yield fine("not needed")
        return
    try:
        info, _ = cards.ask_docker(settings.GPUSHARE_DOCKER_HOST)
    except (sdk.errors.DockerException, OSError):
        return  # its own check says so
    if settings.GPUSHARE_ENGINE == "swarm":
        try:
            require_manager(info)
        except EngineAway as error:
            yield wrong(str(error), "Nothing can be launched.", "See docs/swarm.md.")
            return
    if not in_swarm(info):
        yield fine("not needed: Docker is not in a Swarm")
        return
    gpus: list[Gpu] = []
    with suppress(DatabaseError):  # its own check says so
        gpus = list(Gpu.objects.filter(node__name=settings.GPUSHARE_NODE, present=True))
    yield from _declared(info.get("GenericResources"), {gpu.index: gpu.most for gpu in gpus})
    yield from _named(info["Name"])
    if any(not gpu.simulated for gpu in gpus):
        yield from _passed_on(info.get("DefaultRuntime", ""))


def _named(name: str) -> Iterator[Finding]:
    """`name`: of this host, as its Docker tells a Swarm."""
    if name != settings.GPUSHARE_NODE:
        yield wrong(
            f"This host is {name} in the Swarm, and {settings.GPUSHARE_NODE} here.",
            "A launch that names its GPUs finds no node, and a drained node still gets launches.",
            f"Use one name: set GPUSHARE_NODE={name}. A host that has joined has to join again with --name {name}.",
        )


def _passed_on(runtime: str) -> Iterator[Finding]:
    """`runtime`: the one that Docker takes by itself. A Swarm cannot ask for another."""
    if runtime != "nvidia":
        yield wrong(
            f"Docker starts containers by {runtime or 'an unknown runtime'}, not by NVIDIA's.",
            "Containers that a Swarm places here find no GPU.",
            "`nvidia-ctk runtime configure --set-as-default`; `systemctl restart docker`, which ends its containers.",
        )


def _declared(resources: list[Mapping[str, Any]] | None, known: Mapping[int, int]) -> Iterator[Finding]:
    """`known`: bytes that containers may hold together, by the number of the card."""
    declared = kinds.read(resources)
    write = f"{FILE} needs {kinds.lines(known)}; then `systemctl restart docker`, which ends its containers."
    if not known:
        yield note(
            "Docker is in a Swarm, and the GPUs of this host are not known yet.",
            "Their memory cannot be compared with what is declared.",
            "Start the scheduler once, then run doctor again.",
        )
    elif named := kinds.misread(resources):
        yield wrong(
            f"Docker reads {named[0]} as a name: its value is not a plain number.",
            "Containers that reserve it never start.",
            write,
        )
    elif missing := sorted(known.keys() - declared.keys()):
        what = "card" if len(missing) == 1 else "cards"
        yield wrong(
            f"The Swarm does not know of {what} {', '.join(map(str, missing))} of this host.",
            "It places no container on them.",
            write,
        )
    elif over := [card for card, size in known.items() if declared[card] > size]:
        card = over[0]
        yield note(
            f"Card {card} is declared with {format_size(declared[card])} and gives {format_size(known[card])}.",
            "Swarm places more on it than fits at once: some containers wait there until others end.",
            write,
        )
    else:
        declared_as = ", ".join(f"{kinds.kind_of(card)}={size // kinds.MIB}" for card, size in sorted(declared.items()))
        yield fine(f"The Swarm knows the cards of this host: {declared_as}.")
