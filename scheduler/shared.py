"""What most parts of a host's scheduler work with; worker.py makes it once."""

from dataclasses import dataclass
from pathlib import Path

from scheduler.engines.base import Engine
from scheduler.gpus import Gpus
from scheduler.sessions.broker import Broker
from scheduler.sessions.roster import Roster
from scheduler.sessions.server import Server
from scheduler.store import Store


@dataclass(frozen=True, slots=True)
class SharedParts:
    """`broker` decides about memory, `roster` adds and ends containers, `server` has the sockets."""

    home: Path
    gpus: Gpus
    engine: Engine
    store: Store
    broker: Broker
    roster: Roster
    server: Server
