"""The calls that stop and move processes of a card, and who undoes them if the scheduler is gone."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scheduler.card.generation import Generation
from scheduler.card.guardian import Guardian
from scheduler.card.helper import CardHelper


@dataclass(frozen=True, slots=True)
class CardAccess:
    """`turns` and `moves` are apart: a move takes minutes, and no turn waits for one."""

    turns: CardHelper
    moves: CardHelper
    guardian: Guardian
    generation: Generation

    @classmethod
    def open(cls, home: Path, build: Path, environment: Mapping[str, str]) -> "CardAccess":
        """`environment`: what a program needs to reach the cards."""
        env, generation = {**os.environ, **environment}, Generation(home / "guardian.lock")
        guardian = Guardian(build / "guardian", generation, env)
        return cls(CardHelper(env, generation), CardHelper(env, generation), guardian, generation)
