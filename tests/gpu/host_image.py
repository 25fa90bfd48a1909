"""An image of nothing but links: the host's own Python with its frameworks comes in by read-only volumes.

So neither a registry nor gigabytes are needed to run PyTorch in a container of a machine that has PyTorch.
"""

import io
import os
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
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
ROOT = Path(__file__).resolve().parents[2]
# Where this Python finds what it imports, one in a container must too.
GIVEN = [Path(path).resolve() for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
PATHS = os.pathsep.join(map(str, [ROOT, *GIVEN]))
PYTHON = os.environ.get("GPU_TEST_PYTHON", sys.executable)
CPUS = " ".join(map(str, os.sched_getaffinity(0)))  # a container's programs do not inherit it from here


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


@dataclass(frozen=True)
class Docker:
    """`settings`: an appliance's that use it. `volumes`: of each container that runs this host's Python."""

    image: str
    volumes: Sequence[str]
    settings: dict[str, str]


def engine(stack: ExitStack) -> Docker:
    """That of DOCKER_HOST, or else a dockerd until the end of `stack`."""
    if "DOCKER_HOST" not in os.environ:
        from tests.support.dockerd import private

        os.environ["DOCKER_HOST"] = stack.enter_context(private()).address
    folders = [path for path in dict.fromkeys(map(str, [ROOT, *GIVEN])) if not path.startswith(("/usr/", "/opt/"))]
    volumes = [*VOLUMES, *(f"{path}:{path}:ro" for path in folders)]
    settings = {
        "GPUSHARE_ENGINE": "docker", "GPUSHARE_DOCKER_HOST": os.environ["DOCKER_HOST"],
        "GPUSHARE_VOLUME_ROOTS": " ".join([*ROOTS, *folders, tempfile.gettempdir()]),
    }  # fmt: skip
    return Docker(build(), volumes, settings)
