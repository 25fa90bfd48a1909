"""The start of a process in a container of the running appliance, with the shim and without, in turns.

As a module: `rounds`. As a program, in the container: `starting.py PROGRAM SECONDS [PEER …]`, which prints such times
(ms): native, with the shim, and with other builds of it.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path


def rounds(
    program: Path, seconds: float, peers: Mapping[str, str] | None = None, gpus: str = "nvidia"
) -> dict[str, list[tuple[float, float]]]:
    """Native and shimmed milliseconds from the start of a process to its first allocation, by library.

    `peers`: other builds of it, name → path; the appliance's own has the name "".
    """
    import httpx

    from tests.support.appliance import Appliance, until

    peers = peers or {}
    with tempfile.TemporaryDirectory(prefix="gpushare-start-") as folder:
        site = Appliance(Path(folder) / "home", gpus, GPUSHARE_POLICY="fair")
        try:
            words = [sys.executable, __file__, str(program), str(seconds), *peers.values()]
            made = site.launch(*words, name="starts", gpu_memory="4GiB")
            path = f"containers/{made['id']}"
            until(lambda: site.api("GET", f"{path}/")["finished_at"], within=seconds + 30)
            log = httpx.get(
                f"{site.url}/api/v1/{path}/logs/", headers={"Authorization": f"Token {site.token}"}, timeout=10
            )
        finally:
            site.close()
    rows = [[float(cell) for cell in line.split()] for line in log.text.splitlines()]
    return {name: [(row[0], row[at]) for row in rows] for at, name in enumerate(["", *peers], 1)}


def in_turn(names: Sequence[str], turn: int) -> list[str]:
    """All of them, each first in its turn."""
    first = turn % len(names)
    return [*names[first:], *names[:first]]


def once(program: str, env: Mapping[str, str]) -> float:
    words = [program, str(time.monotonic_ns())]
    return float(subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout) / 1e6


def main() -> None:
    program, seconds, *peers = sys.argv[1:]
    shimmed = dict(os.environ)
    native = {name: value for name, value in shimmed.items() if name != "LD_PRELOAD"}
    envs = {"native": native, "": shimmed, **{peer: {**shimmed, "LD_PRELOAD": peer} for peer in peers}}
    for env in envs.values():
        once(program, env)  # warm
    end, turn = time.monotonic() + float(seconds), 0
    while time.monotonic() < end:
        times = {name: once(program, envs[name]) for name in in_turn(list(envs), turn)}
        turn += 1
        print(*(times[name] for name in envs), flush=True)


if __name__ == "__main__":
    main()
