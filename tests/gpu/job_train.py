"""Runs in a container or beside one: `STEPS` of a training from `SEED`, then prints the SHA-256 of all its weights.

    job_train.py SEED STEPS

The same seed and steps give the same bits, wherever its memory was meanwhile.
"""

import hashlib
import os
import sys
import time

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import torch

seed, steps = int(sys.argv[1]), int(sys.argv[2])
torch.use_deterministic_algorithms(True)
torch.manual_seed(seed)
size = 4096
ballast = torch.randint(1 << 30, (5 << 26,), dtype=torch.int32, device="cuda")  # 1.25 GiB that have to be right, too
model = torch.nn.Sequential(torch.nn.Linear(size, size), torch.nn.ReLU(), torch.nn.Linear(size, size)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
draws = torch.Generator(device="cuda").manual_seed(seed)
for step in range(steps):
    data = torch.randn(512, size, device="cuda", generator=draws)
    loss = (model(data) - data).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.cuda.synchronize()
    if step % 100 == 0:
        print(f"step {step}", flush=True)
    time.sleep(0.01)
digest = hashlib.sha256()
for weights in (*model.parameters(), ballast):
    digest.update(weights.detach().cpu().numpy().tobytes())
print(f"weights {digest.hexdigest()}", flush=True)
