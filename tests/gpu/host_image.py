"""An image of nothing but links: the host's own Python with its frameworks comes in by read-only volumes.

So neither a registry nor gigabytes are needed to run PyTorch in a container of a machine that has PyTorch.
"""

from __future__ import annotations

import io
import os
import sys
import tarfile
from pathlib import Path

import docker

IMAGE = "gpushare/host:latest"
LINKS = {
    "usr": "host/usr",
    "opt": "host/opt",
    **{name: f"host/usr/{name}" for name in ("bin", "lib", "lib64")},
    # /sbin is no link: Docker puts its init there, which a volume must not cover. ctypes and Triton run ldconfig.
    "sbin/ldconfig": "../host/usr/sbin/ldconfig",
}
# The loader's cache and what links of /usr/bin lead through, for frameworks that compile.
_FILES = [path for path in ("/etc/ld.so.cache", "/etc/alternatives") if Path(path).exists()]
VOLUMES = ["/usr:/host/usr:ro", "/opt:/host/opt:ro", *(f"{path}:{path}:ro" for path in _FILES)]
ROOTS = ["/usr", "/opt", *_FILES]  # what GPUSHARE_VOLUME_ROOTS has to allow
PYTHON = os.environ.get("GPU_TEST_PYTHON", sys.executable)


def build(address: str = "") -> str:
    """Gives the image to the engine at this address, else to that of DOCKER_HOST; its name."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name in ("tmp", "etc", "host", "jobs", "sbin"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o777
            tar.addfile(folder)
        for name, target in LINKS.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
    client = docker.DockerClient(address) if address else docker.from_env()
    client.api.import_image_from_data(archive.getvalue(), repository="gpushare/host", tag="latest")
    client.close()
    return IMAGE
