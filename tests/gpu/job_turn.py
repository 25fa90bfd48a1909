"""Runs in a container: takes `GIB` of tensors, multiplies with them, holds them for `SECONDS`, checks the result."""

import sys
import time

import torch

gib, seconds = float(sys.argv[1]), float(sys.argv[2])
began = time.monotonic()
size = 1 << 30
blocks = []
for index in range(int(gib * 4)):
    blocks.append(torch.full((size // 4,), index % 251, dtype=torch.uint8, device="cuda"))
    print(f"{time.time():.3f} block {index} after {time.monotonic() - began:.3f} s", flush=True)
generator = torch.Generator(device="cuda").manual_seed(7)
a = torch.randint(0, 8, (2048, 2048), generator=generator, device="cuda", dtype=torch.int32).float()
product = (a @ a).sum(dtype=torch.float64).item()
expected = (a.double() @ a.double()).sum().item()
time.sleep(seconds)
right = product == expected and all(bool((block == index % 251).all()) for index, block in enumerate(blocks))
print(f"{time.time():.3f} result {'right' if right else 'WRONG'} product {product:.0f}", flush=True)
sys.exit(0 if right else 1)
