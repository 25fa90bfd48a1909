"""The start of a process in a container of the running appliance, with the shim and without, in turns.

As a module: `rounds`. As a program, in the container: `starting.py PROGRAM SECONDS`, which prints such pairs (ms).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def rounds(program: Path, seconds: float, gpus: str = "nvidia") -> list[tuple[float, float]]:
    """Native and shimmed milliseconds from the start of a process to its first allocation."""
    import httpx

    from tests.support.appliance import Appliance, until

    with tempfile.TemporaryDirectory(prefix="gpushare-start-") as folder:
        site = Appliance(Path(folder) / "home", gpus, GPUSHARE_POLICY="fair")
        try:
            made = site.launch(sys.executable, __file__, str(program), str(seconds), name="starts", gpu_memory="4GiB")
            path = f"containers/{made['id']}"
            until(lambda: site.api("GET", f"{path}/")["finished_at"], within=seconds + 30)
            log = httpx.get(
                f"{site.url}/api/v1/{path}/logs/", headers={"Authorization": f"Token {site.token}"}, timeout=10
            )
        finally:
            site.close()
    pairs = [line.split() for line in log.text.splitlines()]
    return [(float(native), float(shimmed)) for native, shimmed in pairs]


def once(program: str, env: dict[str, str]) -> float:
    words = [program, str(time.monotonic_ns())]
    return float(subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout) / 1e6


def main() -> None:
    program, seconds = sys.argv[1], float(sys.argv[2])
    shimmed = dict(os.environ)
    native = {name: value for name, value in shimmed.items() if name != "LD_PRELOAD"}
    once(program, native), once(program, shimmed)  # warm
    end, turn = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        turn += 1
        envs = [native, shimmed] if turn % 2 else [shimmed, native]
        times = [once(program, env) for env in envs]
        print(*(times if turn % 2 else reversed(times)), flush=True)


if __name__ == "__main__":
    main()
