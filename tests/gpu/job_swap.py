"""Runs in a container or beside one: holds `GIB` of patterns on the card and looks at every byte when it is asked.

    job_swap.py FOLDER GIB [workers]

Each number that somebody writes to FOLDER/ask is answered by a line in FOLDER/said: "NUMBER right", or "NUMBER WRONG".
The first line is "0 right" as soon as it holds them. `workers`: each answer also takes a batch of a data loader with
two processes, and a child holds a pattern on the card as well and is asked too.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

folder, gib, workers = Path(sys.argv[1]), float(sys.argv[2]), "workers" in sys.argv
NUMBERS = 1 << 26  # int32 in a chunk: 256 MiB
CHILD = 0.5  # GiB


def pattern(index: int) -> torch.Tensor:
    return torch.arange(NUMBERS, dtype=torch.int32, device="cuda").mul_(2 * index + 1)


def right() -> bool:
    found = all(torch.equal(chunk, pattern(index)) for index, chunk in enumerate(chunks))
    torch.cuda.empty_cache()
    return found


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1024,), index % 251)


def sums() -> Iterator[bool]:
    """For each batch whether its sum on the card is what it has to be."""
    for number, batch in enumerate(DataLoader(Numbers(), batch_size=32, num_workers=2)):
        expected = sum(index % 251 for index in range(32 * number, 32 * number + 32)) * 1024
        yield int(batch.cuda().sum()) == expected


def say(line: str) -> None:
    with (folder / "said").open("a") as said:
        said.write(line + "\n")


def asked(where: Path) -> str:
    try:
        return (where / "ask").read_text()
    except FileNotFoundError:
        return ""


def child_says(number: str) -> bool:
    said = folder / "child" / "said"
    (folder / "child" / "asking").write_text(number)
    (folder / "child" / "asking").rename(folder / "child" / "ask")
    while not (lines := [line for line in said.read_text().splitlines() if line.split()[0] == number]):
        time.sleep(0.01)
    return lines[0].endswith("right")


chunks = [pattern(index) for index in range(int(gib * 4))]
torch.cuda.synchronize()
batches = sums() if workers else iter(())
if workers:
    (folder / "child").mkdir()
    subprocess.Popen([sys.executable, __file__, str(folder / "child"), str(CHILD)])
    while not (folder / "child" / "said").exists():
        time.sleep(0.01)
say(f"0 {'right' if right() and (not workers or next(batches)) else 'WRONG'}")
last = ""
while True:
    if (number := asked(folder)) and number != last:
        fine = right() and (not workers or (next(batches) and child_says(number)))
        say(f"{number} {'right' if fine else 'WRONG'}")
        last = number
    time.sleep(0.02)
