"""Python programs of these tests inside Docker's containers: this Python, its packages and this tree, all the host's.

    inside.build(dockerd.address)
    host.launch(*inside.words(PROGRAM, "/run/gpushare"), **inside.FIELDS)     # with GPUSHARE_VOLUME_ROOTS of ROOTS

Read-only, by volumes into an image that has nothing of its own: so it needs no registry, and no busybox either.
"""

import sys
from pathlib import Path
from typing import Any

import _cffi_backend

from tests.gpu import host_image
from tests.support.card import ROOT as TREE

SOCKETS = "/run/gpushare"  # where a container has the folder of its socket
_PYTHON = Path(sys.executable).resolve()
_PACKAGES = Path(_cffi_backend.__file__).parent
_FOLDERS: list[str] = []
for _folder in (TREE, _PACKAGES, Path(sys.base_prefix).resolve()):
    if not any(_folder.is_relative_to(known) for known in (*host_image.ROOTS, *_FOLDERS)):
        _FOLDERS.append(str(_folder))
ROOTS = [*host_image.ROOTS, *_FOLDERS]
FIELDS: dict[str, Any] = {
    "image": host_image.IMAGE,
    "volumes": [*host_image.VOLUMES, *(f"{folder}:{folder}:ro" for folder in _FOLDERS)],
    "environment": {"PYTHONPATH": f"{TREE}:{_PACKAGES}", "PYTHONDONTWRITEBYTECODE": "1"},
}
build = host_image.build


def words(program: str, *words: str) -> list[str]:
    """The command of a container that runs this program."""
    return [str(_PYTHON), "-c", program, *words]
