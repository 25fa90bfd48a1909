"""The simulated card: make its file from a description, and let nvidia-ml-py in this process talk to it.

A card is one file (see card.h); every process whose GPUSHARE_SIM names it shares it. Give the file a folder of its
own: containers get that folder mounted.
"""

import ctypes
import os
import re
from pathlib import Path

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DESCRIPTION = re.compile(r"sim:(?:(\d+)x)?(\d+)(?:([kmgt])(?:ib)?)?", re.IGNORECASE)
FREE_DELAY = 0.003  # seconds from a process's death to the return of its memory, about what a real card takes


def parse(description: str) -> tuple[int, int]:
    """(number of GPUs, bytes of each) from "sim:2x5GiB" or "sim:5g"."""
    match = _DESCRIPTION.fullmatch(description)
    if match is None:
        raise ValueError(f'"{description}" is not a simulated card: write it like sim:1x5GiB')
    count, size, unit = match.groups()
    return int(count or 1), int(size) * _UNITS[(unit or "").lower()]


def load_nvml(build: Path) -> ctypes.CDLL:
    """Loads the simulated NVML into this process. nvidia-ml-py then finds it by its soname, wherever it lies."""
    return ctypes.CDLL(str(build / "sim" / "libnvidia-ml.so.1"), mode=ctypes.RTLD_GLOBAL)


def is_whole(path: Path, build: Path) -> bool:
    """Whether this is a card's file as it was made: any program on the card can cut it off."""
    ask = load_nvml(build).sim_card_is_whole
    ask.argtypes = [ctypes.c_char_p]
    return bool(ask(os.fsencode(path)))


def create(description: str, path: Path, build: Path, free_delay: float = FREE_DELAY) -> None:
    """Makes the card file at `path`, which must not exist yet. Sizes are rounded down to 2 MiB."""
    gpus, size = parse(description)
    path.parent.mkdir(parents=True, exist_ok=True)
    make = load_nvml(build).sim_card_create
    make.argtypes = [ctypes.c_char_p, ctypes.c_uint, ctypes.c_uint64, ctypes.c_uint64]
    if error := make(os.fsencode(path), gpus, size, int(free_delay * 1e6)):
        raise OSError(error, f"cannot make the simulated card {description}: {os.strerror(error)}", str(path))
