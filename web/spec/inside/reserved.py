"""What is the appliance's own in a container: the variables and the places that the quota and the GPUs hang on.

One list for everybody: a launch that names one is refused (environment.py, mounts.py), and an engine takes away what an
image brings of them (scheduler/engines/runtime_environment.py). Pure, so that whoever runs containers can read it
without Django.
"""

from fnmatch import fnmatchcase
from pathlib import PurePosixPath

# Pattern → what it would undo.
_VARIABLES = {
    "LD_*": "the loader has to load the library that keeps the quota",
    "GLIBC_TUNABLES": "the loader has to load the library that keeps the quota",
    "NVIDIA_*": "it would change which GPUs the container gets",
    "CUDA_VISIBLE_DEVICES": "it would change which GPUs the container gets",
    "CUDA_DEVICE_ORDER": "it would change which GPUs the container gets",
    "CUDA_MPS_*": "it would take the container to another daemon than its own",
    "CUDA_INJECTION*": "it would load a library before the one that keeps the quota",
    "GPUSHARE_*": "these are set by the appliance",
}
# They undo nothing: what an image needs of the driver; where the loader searches, as the shim is loaded by
# its full path and ours comes in front (scheduler/engines/runtime_environment.py).
_HARMLESS = ("NVIDIA_REQUIRE_*", "LD_LIBRARY_PATH")

# Where an engine puts what is ours. None of it lies below a folder that images or volumes commonly fill.
SOCKETS = "/run/gpushare"
LIBRARIES = "/run/gpushare-lib"
CARD = "/run/gpushare-card"
SHIM = f"{LIBRARIES}/libgpushare.so"  # where it is a file of its own
SFTP = "gpushare-sftp"  # a program of ours beside the container's socket
PRELOAD = "/etc/ld.so.preload"
_KERNELS = ("/proc", "/sys", "/dev")
_PLACES = (SOCKETS, LIBRARIES, CARD, PRELOAD, *_KERNELS, "/usr/lib", "/lib", "/lib64")


def undone_by(name: str) -> str:
    """What a variable of this name would undo, as the end of a sentence; empty if it undoes nothing."""
    name = name.upper()
    if any(fnmatchcase(name, pattern) for pattern in _HARMLESS):
        return ""
    return next((reason for pattern, reason in _VARIABLES.items() if fnmatchcase(name, pattern)), "")


def covered_by(target: str) -> str:
    """Which place that is not to be touched a mount at `target`, a normal path, would hide or change; empty if none."""
    path = PurePosixPath(target)
    return next((each for each in _PLACES if path.is_relative_to(each) or PurePosixPath(each).is_relative_to(path)), "")


def kernels_own(folder: str) -> str:
    """Which of the kernel's places a folder, by its normal path, is or lies in; empty if none."""
    return next((each for each in _KERNELS if PurePosixPath(folder).is_relative_to(each)), "")
