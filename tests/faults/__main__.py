"""python -m tests.faults: see the package."""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument("what", choices=["lines", "storm"])
    parser.add_argument("--engine", choices=["process", "docker"], default="process")
    parser.add_argument("--database", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--count", type=int, default=0, help="Lines to die before; 0: all.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="Lines of this file, or this one line (file:line).")
    parser.add_argument("--part", default="1/1", help="K/N: the K-th of N equal parts of the lines.")
    parser.add_argument("--victims", default="scheduler,web,parent,program,keeper", help="Who is killed in a storm.")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="faults-"))
    with ExitStack() as stack:
        environment = _environment(options, home, stack)
        os.environ.update(environment)
        subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, check=True)
        import django

        django.setup()
        faults = _run(options, home, stack)
    if faults:
        print(f"kept for a look: {home}")
    else:
        shutil.rmtree(home, ignore_errors=True)
    return min(faults, 1)


def _environment(options: argparse.Namespace, home: Path, stack: ExitStack) -> dict[str, str]:
    database = f"sqlite:///{home / 'gpushare.sqlite3'}"
    if options.database == "postgres":
        from tests.support.postgres import running_postgres

        database = stack.enter_context(running_postgres()).url
    return {
        "DJANGO_SETTINGS_MODULE": "appliance.settings",
        "DATABASE_URL": database,
        "GPUSHARE_HOME": str(home),
        "GPUSHARE_GPUS": "sim:1x5GiB",
        "GPUSHARE_ENGINE": options.engine,
        "GPUSHARE_SECRET_KEY": secrets.token_hex(32),
    }


def _run(options: argparse.Namespace, home: Path, stack: ExitStack) -> int:
    from tests.faults import lines, storm
    from tests.faults.whole import Whole
    from tests.faults.world import World

    workload = str(ROOT / ".build" / "workload")
    if options.what == "storm":
        whole = Whole(home, workload)
        whole.start()
        stack.callback(whole.close)
        return storm.run(whole, options.victims.split(","), options.seconds, options.seed)
    world = World(home, workload)
    stack.callback(world.close)
    found = [place for place in lines.places(options.engine) if place.startswith(options.only)]
    there = lines.reached(world, found)
    print(f"{len(found)} lines act, {len(there)} of them in this play", flush=True)
    part, parts = map(int, options.part.split("/"))
    there = there[part - 1 :: parts]
    return lines.run(world, lines.pick(there, options.count, options.seed) if options.count else there)


if __name__ == "__main__":
    sys.exit(main())
