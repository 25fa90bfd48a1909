"""Runs in a container or beside one: computes while FOLDER/NAME.go exists, and writes down how much it has done.

    job_compute.py KIND FOLDER NAME

Four times a second FOLDER/NAME.done gets a line "TIME UNITS": the clock (time.time) and all units that the card has
finished so far. `notebook` computes for 50 ms at the beginning of each second instead, and each line is "TIME SECONDS"
of one such burst, from its first launch until its result is there.

Kinds: `gemm` (bf16, 8192), `cnn` and `transformer` (trainings that look at their loss), `ahead` (a training that never
does, and has up to 300 steps queued), `notebook`.
"""

import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

kind, folder, name = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
AHEAD = {"gemm": 20, "cnn": 8, "transformer": 8, "ahead": 300, "notebook": 1}[kind]
torch.manual_seed(7)
device = torch.device("cuda")


def training(model: nn.Module, data: torch.Tensor, target: torch.Tensor, loss: nn.Module) -> Callable[[], None]:
    model, data, target = model.to(device), data.to(device), target.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(model(data), target).backward()
        optimizer.step()

    return step


def cnn() -> Callable[[], None]:
    layers: list[nn.Module] = []
    for before, after in ((3, 64), (64, 128), (128, 256), (256, 256)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100))
    return training(model, torch.randn(128, 3, 96, 96), torch.randint(100, (128,)), nn.CrossEntropyLoss())


class Sequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 6)
        self.head = nn.Linear(512, 100)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(data).mean(1))


def transformer() -> Callable[[], None]:
    return training(Sequences(), torch.randn(32, 128, 512), torch.randint(100, (32,)), nn.CrossEntropyLoss())


def ahead() -> Callable[[], None]:
    model = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 4096))
    return training(model, torch.randn(2048, 4096), torch.randn(2048, 4096), nn.MSELoss())


def gemm() -> Callable[[], None]:
    a, b = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in "ab")
    out = torch.empty_like(a)

    def step() -> None:
        torch.matmul(a, b, out=out)

    return step


def burst_of(step: Callable[[], None]) -> int:
    """So many steps take 50 ms on a card of their own."""
    begun = time.monotonic()
    for _ in range(40):
        step()
    torch.cuda.synchronize()
    return max(1, round(40 * 0.05 / (time.monotonic() - begun)))


def bursts(write: Callable[[float], None], go_on: Callable[[], bool]) -> None:
    step = gemm()
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    steps = burst_of(step)
    (folder / f"{name}.ready").touch()
    due = time.monotonic()
    while True:
        due = max(due + 1.0, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
        if go_on():
            begun = time.monotonic()
            for _ in range(steps):
                step()
            torch.cuda.synchronize()
            write(time.monotonic() - begun)


def always(write: Callable[[float], None], go_on: Callable[[], bool]) -> None:
    step = {"gemm": gemm, "cnn": cnn, "transformer": transformer, "ahead": ahead}[kind]()
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    (folder / f"{name}.ready").touch()
    queued: deque[torch.cuda.Event] = deque()
    done, reported = 0, 0.0
    while True:
        if go_on():
            step()
            event = torch.cuda.Event()
            event.record()
            queued.append(event)
            if len(queued) > AHEAD:
                queued[0].synchronize()
        else:
            torch.cuda.synchronize()
            time.sleep(0.01)
        while queued and queued[0].query():
            queued.popleft()
            done += 1
        if time.monotonic() >= reported + 0.25:
            reported = time.monotonic()
            write(done)


class Switch:
    """Whether it is to compute: looked at a hundred times a second."""

    def __init__(self) -> None:
        self.on, self.looked = False, 0.0

    def __call__(self) -> bool:
        if time.monotonic() > self.looked + 0.01:
            self.on, self.looked = (folder / f"{name}.go").exists(), time.monotonic()
        return self.on


with (folder / f"{name}.done").open("w", buffering=1) as file:
    (bursts if kind == "notebook" else always)(lambda value: print(f"{time.time():.4f} {value:g}", file=file), Switch())
