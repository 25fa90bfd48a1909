"""Plug-ins, each a folder that nothing imports. They bring containers that are not launched here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from django.utils.module_loading import import_string

from scheduler.card.turns import TurnPlayer
from scheduler.containers.registry import Containers
from scheduler.containers.terminator import Terminator
from scheduler.engines.base import Engine, EngineError
from scheduler.engines.runtime_environment import RuntimeEnvironment
from scheduler.gpus import Gpus, Reading
from scheduler.shared import SharedParts
from scheduler.store import Store

PLUGINS = {"kubernetes": "scheduler.kubernetes.node.Node"}  # by GPUSHARE_ENGINE
VOLUMES = "scheduler.plugin.plugin.Plugin"  # Docker's volumes, for every other engine


class Plugin(Protocol):
    """The calls in their order: `open` before the engine is found, `meet` once all is put together, `expect` before the
    engine is asked what it has, `give_again` after the sockets are open, `run` from then on until cancelled.

    Those that ask the database raise DatabaseError. `engine` gives the one that it brings, if it brings one.
    """

    def __init__(self, home: Path, gpus: Gpus, store: Store) -> None: ...
    async def open(self) -> None: ...
    def engine(self, runtime_environment: RuntimeEnvironment) -> Engine | None: ...
    def meet(self, shared: SharedParts, containers: Containers, ender: Terminator, turns: TurnPlayer) -> None: ...
    async def expect(self) -> None: ...
    def give_again(self) -> None: ...
    async def run(self) -> None: ...
    def see(self, readings: Mapping[str, Reading]) -> None: ...
    async def close(self) -> None: ...


def plugin_of(engine: str) -> type[Plugin]:
    """Raises EngineError if it is not installed."""
    try:
        return import_string(PLUGINS.get(engine, VOLUMES))  # type: ignore[no-any-return]
    except ImportError as error:
        raise EngineError(
            f"What GPUSHARE_ENGINE={engine} needs is not installed ({error}): pip install -r requirements/{engine}.txt"
        ) from None
