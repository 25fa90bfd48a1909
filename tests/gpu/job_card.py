"""Holds `GIB` of patterns on one card, and looks at every byte when it is asked, as job_swap.py does: see there.

    job_card.py FOLDER GIB torch|sim|init [all]

`all`: it sees every card of the host, and takes its own by UUID (NVIDIA_VISIBLE_DEVICES): with CUDA_VISIBLE_DEVICES a
driver may not restore on another card. `init`: it has initialised CUDA, and makes its context when it is first asked.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

folder, gib, kind = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
if "all" in sys.argv:
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
NUMBERS = 1 << 26  # int32 in a chunk: 256 MiB


def with_torch() -> Callable[[], bool]:
    import torch

    cards: dict[str, int] = {}
    for index in range(torch.cuda.device_count()):
        try:
            cards[f"GPU-{torch.cuda.get_device_properties(index).uuid}"] = index
        except RuntimeError as error:  # one that the container does not have: the shim says nothing of it
            print(f"GPU {index}: {error}", flush=True)
    its = os.environ.get("NVIDIA_VISIBLE_DEVICES", "").split(",")[0]
    print(f"torch sees {cards}, its own is {its}", flush=True)
    device = torch.device("cuda", cards.get(its, 0))
    chunks: list[torch.Tensor] = []

    def pattern(index: int) -> torch.Tensor:
        return torch.arange(NUMBERS, dtype=torch.int32, device=device).mul_(2 * index + 1)

    def right() -> bool:
        while len(chunks) < 4 * gib:
            chunks.append(pattern(len(chunks)))
        found = all(torch.equal(chunk, pattern(index)) for index, chunk in enumerate(chunks))
        torch.cuda.empty_cache()
        return found

    return right


def with_sim() -> Callable[[], bool]:
    from tests.support.cuda import MIB, Cuda

    cuda, size = Cuda(), int(gib * (1 << 30))
    address, told = cuda.alloc(size), os.urandom(MIB)
    cuda.write(address + size - MIB, told)
    return lambda: bool(cuda.read(address + size - MIB, MIB) == told)


def say(line: str) -> None:
    with (folder / "said").open("a") as said:
        said.write(line + "\n")


right = with_sim() if kind == "sim" else with_torch()
say(f"0 {'right' if kind == 'init' or right() else 'WRONG'}")
while True:
    try:
        number = (folder / "ask").read_text()
    except FileNotFoundError:
        time.sleep(0.02)
        continue
    (folder / "ask").unlink()
    say(f"{number} {'right' if right() else 'WRONG'}")
