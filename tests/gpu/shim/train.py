"""Trains a small CNN and a transformer block, a turn at a time: `train.py IMAGES SEQUENCES` answers lines on stdin.

IMAGES and SEQUENCES: how many a step takes. With few the processor is what limits (it starts kernels as fast as it
can), with many the card.
"go SECONDS": one line "name<TAB>steps-per-second<TAB>intercepted-calls-per-step" for each model. The count is the
counting build's (make -C shim counted); without it, it is −1. Ends when stdin does.
"""

import ctypes
import sys
import time
from collections.abc import Callable

import torch
from torch import nn

torch.manual_seed(1)


def counted() -> int:
    try:
        return int(ctypes.CDLL(None).gpushare_intercepted())
    except AttributeError:
        return -1


def training(model: nn.Module, data: torch.Tensor) -> Callable[[], float]:
    """A step of it, in steady state."""
    model = model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = model(data).float().square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    for _ in range(30):
        step()
    return step


def measure(name: str, step: Callable[[], float], seconds: float) -> None:
    step()
    before, begin = counted(), time.perf_counter()
    steps = 0
    while time.perf_counter() - begin < seconds:
        step()
        steps += 1
    rate = steps / (time.perf_counter() - begin)
    calls = (counted() - before) / steps if before >= 0 else -1
    print(f"{name}\t{rate:.3f}\t{calls}", flush=True)


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


images, sequences = map(int, sys.argv[1:])
block = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0)
models = {
    "small CNN": training(cnn(), torch.randn(images, 3, 64, 64, device="cuda")),
    "transformer block": training(block, torch.randn(sequences, 256, 512, device="cuda")),
}
print("ready", flush=True)
for line in sys.stdin:
    for name, step in models.items():
        measure(name, step, float(line.split()[1]))
