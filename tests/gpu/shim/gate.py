"""What the gate adds to an all-reduce on two real GPUs: `python -m tests.gpu.shim.gate --out FOLDER`, half a minute.

How trainings are stopped by it is measured with the scheduler: `python -m tests.gpu.ranked`.
"""

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path

from tests.gpu.shim import NO_MULTICAST, card
from tests.support.grants import Grants


def costs(server: Grants) -> list[str]:
    import torch  # where its NCCL lies

    nccl = next(Path(torch.__file__).parent.parent.glob("nvidia/**/libnccl.so.2"))
    folder = tempfile.mkdtemp()
    program = f"{folder}/allreduce"
    source = Path(__file__).with_name("allreduce.c")
    subprocess.run(["nvcc", "-O2", "-o", program, source, "-lcuda", "-ldl"], check=True)
    env = {**os.environ, **NO_MULTICAST, **server.env()}
    both = [
        subprocess.Popen([program, str(rank), folder, str(nccl)], env=env, text=True, stdout=subprocess.PIPE)
        for rank in range(2)
    ]
    return [f"rank {rank} {line}" for rank, each in enumerate(both) for line in each.communicate()[0].splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    server = card.scheduler(70 * card.GIB, extra=2 * card.GIB)
    lines = costs(server)
    (options.out / "gate.json").write_text(json.dumps({"costs": lines}, indent=1))
    print("\n".join(lines))
    server.close()


if __name__ == "__main__":
    main()
