"""Builds the C programs of these benchmarks."""

import subprocess
from pathlib import Path

from tests.support.card import BUILD

HERE = Path(__file__).parent


def build(name: str) -> Path:
    """Compiles NAME.c of this folder with the host's compiler; the program."""
    program = BUILD / "benchmarks" / name
    program.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", "-O2", "-pthread", "-o", program, HERE / f"{name}.c", "-ldl"], check=True)
    return program
