from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def empty_shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that can be preloaded and does nothing: engines carry the shim, they never look into it."""
    path = tmp_path_factory.mktemp("shim") / "libgpushare.so"
    subprocess.run(["cc", "-shared", "-nostdlib", "-x", "c", "/dev/null", "-o", path], check=True)
    return path
