"""Ranks on several hosts: whether a launch says so, in the words of torchrun, Slurm and accelerate."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

ELSEWHERE = "ranks that are not on this host"  # in `no_turns`, of one that can never be stopped

_OPTION = re.compile(r"--(nnodes|num[_-]machines)(=.*)?")
_VARIABLES = ("PET_NNODES", "SLURM_NNODES", "NNODES")
_SEVERAL = re.compile(r"([0-9]+:)?0*([2-9]|[1-9][0-9]+)")  # a number, or the least and the most


def named(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """What says so; empty if nothing does."""
    for word, following in pairwise([*command, ""]):
        if (option := _OPTION.fullmatch(word)) and _SEVERAL.fullmatch((option[2] or f"={following}")[1:]):
            return word if option[2] else f"{word} {following}"
    return next((name for name in _VARIABLES if _SEVERAL.fullmatch(environment.get(name, ""))), "")
