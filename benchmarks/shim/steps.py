"""How many of the shim's own instructions stand in the way of an allocation that succeeds: counted, not timed.

    python -m benchmarks.shim.steps [LIBRARY …]

One column for each build of libgpushare.so (by default this tree's), on the simulated card. Before and after a change
the two are to be equal, or the change says what the difference is for.
"""

import sys
import tempfile
import uuid
from pathlib import Path

from benchmarks.shim.programs import build
from tests.support.card import BUILD, Card
from tests.support.grants import Grants


def count(program: Path, library: Path) -> dict[str, int]:
    """Call → instructions inside `library`."""
    with tempfile.TemporaryDirectory() as folder:
        card = Card("sim:1x4GiB", Path(folder))
        uuids = [uuid.UUID(gpu["uuid"].removeprefix("GPU-")).bytes for gpu in card.gpus()]
        grants = Grants(Path(folder), uuids, quota=2 << 30, extra=2 << 30)
        try:
            process = card.popen([str(program)], env={**grants.env(), "LD_PRELOAD": str(library)}, stdout=-1)
            output, _ = process.communicate(timeout=300)
            if process.returncode:
                raise SystemExit(process.returncode)
        finally:
            card.close()
            grants.close()
    return {name: int(number) for name, number in (line.rsplit(" ", 1) for line in output.splitlines())}


def main(*libraries: str) -> None:
    program = build("steps")
    paths = [Path(path).resolve() for path in libraries] or [BUILD / "libgpushare.so"]
    columns = [count(program, path) for path in paths]
    for name in columns[0]:
        print(f"{name:24}" + "".join(f"{column[name]:>8}" for column in columns))


if __name__ == "__main__":
    main(*sys.argv[1:])
