"""A claim's CDI specification: what a container runtime adds to each container that has the claim.

    the specification   the socket folder, the shim, the preload file, variables: what every container of the claim
                        gets, once, however many of the claim's cards it names
    its devices         one a card: how to reach it; by NVIDIA's own CDI device where there is one, else its nodes

Written whole or not at all: runtimes read the folder whenever it changes. What a killed driver was just writing is no
specification by its name, and is taken away with the next start.
"""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from scheduler.engines.docker.gpu_access import Additions, Mount
from scheduler.engines.runtime_environment import environment
from scheduler.kubernetes.names import DRIVER
from web.spec.inside.reserved import PRELOAD, SHIM, SOCKETS

VERSION = "0.6.0"  # the oldest with all that is used here
KIND = f"{DRIVER}/claim"
_BEGINS = f"{DRIVER}-claim_"


class Specifications:
    """Those of our claims, by the claim's uid, in a folder that runtimes look at (/var/run/cdi)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, uid: str) -> Path:
        return self._folder / f"{_BEGINS}{uid}.json"

    def write(self, uid: str, specification: Mapping[str, Any]) -> None:
        """Durable when this returns; the same again changes nothing. Raises OSError."""
        text, path = json.dumps(specification, indent=1), self.path(uid)
        if path.exists() and path.read_text() == text:
            return
        self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.new")
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)

    def remove(self, uid: str) -> None:
        self.path(uid).unlink(missing_ok=True)

    def clear(self, living: Collection[str]) -> None:
        """Removes those of all claims but these, and what was being written. Raises OSError."""
        for path in self._folder.glob(f"{_BEGINS}*.json") if self._folder.exists() else ():
            if path.stem.removeprefix(_BEGINS) not in living:
                path.unlink(missing_ok=True)
        for partial in self._folder.glob(f".{_BEGINS}*.new"):
            partial.unlink(missing_ok=True)


def device_id(uid: str, device: str) -> str:
    return f"{KIND}={uid}.{device}"


def specification(
    uid: str,
    *,
    sockets: Path,
    shim: Path,
    preload: Path,
    cards: Mapping[str, tuple[str, Additions]],
    given: Mapping[str, str],
) -> dict[str, Any]:
    """`cards`: device → its UUID, and what reaches it. `given`: variables for the programs."""
    uuids = [uuid for uuid, _ in cards.values()]
    additions = [each for _, each in cards.values()]
    variables = environment(
        given,
        gpus=uuids,
        shim=SHIM,
        libraries=_once(folder for each in additions for folder in each.libraries),
        state=next((each.state for each in additions if each.state), None),
    )
    if len(uuids) > 1:
        # A container may have a part of the cards: its devices say which. A list that names others would hide its own.
        del variables["CUDA_VISIBLE_DEVICES"]
    variables["NVIDIA_VISIBLE_DEVICES"] = "void"  # or NVIDIA's runtime would add cards by itself
    mounts = [Mount(str(sockets), SOCKETS), Mount(str(shim), SHIM), Mount(str(preload), PRELOAD)]
    mounts += [mount for each in additions for mount in each.mounts]
    return {
        "cdiVersion": VERSION,
        "kind": KIND,
        "containerEdits": {
            "env": [f"{name}={value}" for name, value in variables.items()],
            "mounts": [_mount(mount) for mount in _once(mounts)],
        },
        "devices": [
            {"name": f"{uid}.{device}", "containerEdits": _edits(uuid, each)} for device, (uuid, each) in cards.items()
        ],
    }


def _edits(uuid: str, additions: Additions) -> dict[str, Any]:
    """CDI wants a device to have some: where its nodes come by NVIDIA's device, a word that says which card it is."""
    if additions.devices:
        return {"deviceNodes": [{"path": path, "permissions": "rw"} for path in additions.devices]}
    return {"env": [f"GPUSHARE_CARD_{''.join(c if c.isalnum() else '_' for c in uuid)}=1"]}


def _mount(mount: Mount) -> dict[str, Any]:
    options = ["rbind", "nosuid", "nodev", "rprivate", *(["ro"] if mount.read_only else ["rw"])]
    return {"hostPath": mount.source, "containerPath": mount.target, "options": options}


def _once(values: Any) -> Sequence[Any]:
    return list(dict.fromkeys(values))
