"""A small CNN and a transformer block in training: "name steps-per-second intercepted-calls-per-step", one line each.

The count is the counting build's (make -C shim counted); without it, it is −1.
"""

from __future__ import annotations

import ctypes
import time

import torch
from torch import nn

torch.manual_seed(1)


def counted() -> int:
    try:
        return int(ctypes.CDLL(None).gpushare_intercepted())
    except AttributeError:
        return -1


def measure(name: str, model: nn.Module, data: torch.Tensor) -> None:
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
    before = counted()
    begin = time.perf_counter()
    steps = 0
    while time.perf_counter() - begin < 0.7:
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


measure("small CNN", cnn(), torch.randn(128, 3, 64, 64, device="cuda"))
measure(
    "transformer block",
    nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0),
    torch.randn(16, 256, 512, device="cuda"),
)
