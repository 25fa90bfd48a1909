"""What a launch asks of whatever runs it: a field of a launch is declared here once, for every engine and a Swarm."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Already validated. `id` is ours and names the container everywhere.
    `working_dir` is where the command begins, by its full path; empty takes the image's own. So does `user`, a number
    or a name in the image, perhaps with ":" and a group. `init`: the first process is one that reaps orphans and passes
    signals on, unless the image's command is such a one itself. `memory` is host RAM in
    bytes, `shm_size` what /dev/shm may take of it, `cpus` a number of cores; None takes the engine's own limit.
    `volumes` are "HOST:CONTAINER[:ro]", HOST an absolute path or a volume's name; `ports` are
    "HOST:CONTAINER[/tcp|udp]".
    `interactive` keeps its input open, `tty` gives it a terminal: see `Engine.attach`.
    """

    id: str
    name: str
    image: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    working_dir: str = ""
    user: str = ""
    init: bool = True
    memory: int | None = None
    shm_size: int | None = None
    cpus: float | None = None
    volumes: Sequence[str] = ()
    ports: Sequence[str] = ()
    interactive: bool = False
    tty: bool = False
    owner: str = ""


def untaken(asked: Any, takes: Collection[str]) -> str:
    """The first field of `Asked` that says something and is not in `takes`; empty if there is none."""
    return next((each.name for each in fields(Asked) if each.name not in takes
                 and bool(getattr(asked, each.name)) != bool(each.default)), "")  # fmt: skip
