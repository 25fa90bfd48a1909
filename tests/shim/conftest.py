"""What the shim's tests share: a simulated card, the scheduler's end of the socket, and programs under the shim."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.card import CONTEXT, MIB, Card, card  # noqa: F401
from tests.support.grants import Grants
from tests.support.program import Program


@pytest.fixture
def two_gpus(tmp_path: Path) -> Iterator[Card]:
    """Instead of `card`, where a test needs two."""
    two = Card("sim:2x2GiB", tmp_path)
    yield two
    two.close()


@pytest.fixture
def grants_of(card: Card, tmp_path: Path) -> Iterator[Callable[..., Grants]]:  # noqa: F811
    """Makes the scheduler's end: `grants_of(quota=64 * MIB)`."""
    made: list[Grants] = []

    def make(quota: int = 1024 * MIB, gpus: Sequence[int] | None = None, **options: Any) -> Grants:
        uuids = [uuid.UUID(gpu["uuid"].removeprefix("GPU-")).bytes for gpu in card.gpus()]
        chosen = uuids if gpus is None else [uuids[index] for index in gpus]
        made.append(Grants(tmp_path, chosen, quota, **options))
        return made[-1]

    yield make
    for grants in made:
        grants.close()


@pytest.fixture
def grants(grants_of: Callable[..., Grants]) -> Grants:
    """A container with 1 GiB on each GPU."""
    return grants_of()


@pytest.fixture
def charged(card: Card, grants: Grants) -> Callable[[Program], int]:  # noqa: F811
    """What a program is charged beside its context; also that the card says the same."""

    def look(cuda: Program) -> int:
        used = next(peer for peer in grants.peers if peer.pid == cuda.pid).used()
        held = card.gpus()[0]["held"].get(cuda.pid, 0)
        assert used == held, f"charged {used / MIB} MiB, the card says {held / MIB} MiB"
        return used - CONTEXT

    return look


@pytest.fixture
def cuda(program: Callable[..., Program], grants: Grants) -> Program:
    """A program with the primary context of device 0 current."""
    program_ = program(grants)
    program_.use()
    return program_


@pytest.fixture
def program(card: Card) -> Callable[..., Program]:  # noqa: F811
    """Starts a program under the shim that does what it is asked to: `program(grants)`."""
    return lambda grants, **env: Program(card, {**grants.env(), **env})
