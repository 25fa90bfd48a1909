"""What a container runtime does with CDI devices: it reads the specifications, and applies their edits.

Strict where runtimes are lenient: a specification with a word that the format does not have, or that names a place
which is not there, is an error. The edits are then flags of `docker run`, as Docker knows CDI from release 25 on only.
"""

import json
import re
from pathlib import Path

from tests.kubernetes.cluster.rules import JSON

NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
KIND = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?")


def edits(folder: Path, ids: list[str]) -> list[JSON]:
    """Those of these devices: of each specification once, then of each device."""
    specifications = [_read(path) for path in sorted(folder.glob("*.json"))]
    found: list[JSON] = []
    for id_ in dict.fromkeys(ids):
        kind, _, name = id_.partition("=")
        (specification,) = [
            each for each in specifications if each["kind"] == kind and name in [one["name"] for one in each["devices"]]
        ]
        (device,) = [each for each in specification["devices"] if each["name"] == name]
        found += [each for each in (specification["containerEdits"], device["containerEdits"]) if each not in found]
    return found


def flags(folder: Path, ids: list[str]) -> list[str]:
    """For `docker run`."""
    words: list[str] = []
    for each in edits(folder, ids):
        for entry in each.get("env", []):
            words += ["-e", entry]
        for mount in each.get("mounts", []):
            options = "ro" if "ro" in mount["options"] else "rw"
            words += ["-v", f"{mount['hostPath']}:{mount['containerPath']}:{options}"]
        for node in each.get("deviceNodes", []):
            words += ["--device", f"{node['path']}:{node['path']}:{node['permissions']}"]
    return words


def _read(path: Path) -> JSON:
    found: JSON = json.loads(path.read_text())
    assert found.keys() == {"cdiVersion", "kind", "containerEdits", "devices"}
    assert found["cdiVersion"] in ("0.5.0", "0.6.0", "0.7.0")
    assert KIND.fullmatch(found["kind"]), found["kind"]
    assert found["devices"], "a specification needs a device"
    for each in [found, *found["devices"]]:
        _check(each["containerEdits"])
    for device in found["devices"]:
        assert NAME.fullmatch(device["name"]), device["name"]
        assert device["containerEdits"], "a device needs edits"
    return found


def _check(said: JSON) -> None:
    assert said.keys() <= {"env", "mounts", "deviceNodes"}
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*=.*", entry) for entry in said.get("env", []))
    for mount in said.get("mounts", []):
        assert mount.keys() == {"hostPath", "containerPath", "options"}
        assert Path(mount["hostPath"]).exists(), mount
        assert mount["containerPath"].startswith("/")
