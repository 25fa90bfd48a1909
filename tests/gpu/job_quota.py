"""Runs in a container: takes memory until PyTorch says that there is no more, then shows that it can go on."""

import json

import torch

free, total = torch.cuda.mem_get_info()
blocks = []
try:
    while True:
        blocks.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
except torch.cuda.OutOfMemoryError as error:
    message = str(error).splitlines()[0]
held = sum(block.nbytes for block in blocks)
del blocks
torch.cuda.empty_cache()
again = torch.ones(1024, 1024, device="cuda") @ torch.ones(1024, 1024, device="cuda")
print(
    json.dumps(
        {
            "torch": torch.__version__,
            "total": total,
            "free": free,
            "held": held,
            "message": message,
            "properties_total": torch.cuda.get_device_properties(0).total_memory,
            "goes_on": bool((again == 1024).all()),
        }
    )
)
