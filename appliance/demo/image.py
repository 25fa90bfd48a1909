"""The demo's own Docker image: the workload and glibc, nothing else, made by `docker import`. Needs no registry."""

import io
import tarfile
from pathlib import Path

from django.conf import settings

from scheduler.engines.docker.client import DirectClient

IMAGE = "gpushare/demo:latest"
WORKLOAD = "/bin/workload"  # where any image finds its programs

# What the workload, the shim and NVIDIA's driver libraries ask of a C library.
LIBRARIES = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1")
FOLDERS = ("/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64", "/usr/lib")
LOADERS = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")


def build() -> str:
    """Imports the image anew (it is a few megabytes) and returns its name."""
    client = DirectClient(settings.GPUSHARE_DOCKER_HOST, version="auto")
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        _add(tar, settings.GPUSHARE_BUILD / "workload", WORKLOAD)
        for loader in LOADERS:
            if Path(loader).exists():
                _add(tar, Path(loader), loader)
        for library in LIBRARIES:
            found = next((Path(folder, library) for folder in FOLDERS if Path(folder, library).exists()), None)
            if found:
                _add(tar, found, str(found))  # where this loader looks
        for name in ("tmp", "etc", "run", "proc", "dev", "sys"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
    client.import_image_from_data(archive.getvalue(), repository="gpushare/demo", tag="latest")
    client.close()
    return IMAGE


def _add(tar: tarfile.TarFile, source: Path, name: str) -> None:
    data = source.resolve().read_bytes()
    info = tarfile.TarInfo(name.lstrip("/"))
    info.size, info.mode = len(data), 0o755
    tar.addfile(info, io.BytesIO(data))
