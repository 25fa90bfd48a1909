"""What this node has promised to claims, on its disk: durable before the act, and kept until all is given back.

A file a claim, by the cluster's uid. It says what the kubelet is answered, so that a claim which is prepared stays so
while the API server is away; whether the claim lives, the database says. What was half written is no record.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scheduler.kubernetes.claims import Part
from web.errors import Problem

_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Record:
    """A claim and the container that it is here, by our `id`. `at`: when it was prepared, seconds since the epoch.

    `pods`: those that had it then, or when they were last looked for."""

    id: str
    uid: str
    namespace: str
    name: str
    at: float
    parts: Sequence[Part]
    pods: Sequence[Mapping[str, Any]] = ()  # as pods.Pod.as_dict
    units: Sequence[str] = ()  # where the kubelet counts: which of them; then there is no claim, and no namespace


def require_uid(uid: str) -> None:
    """Files are named by it. Raises Problem."""
    if not _UID.fullmatch(uid):
        raise Problem("bad_uid", "Its uid is no UUID.", 400)


class Records:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def keep(self, record: Record) -> None:
        """Blocking. Raises OSError."""
        path = self._path(record.uid)
        partial = path.with_suffix(".new")
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
            json.dump(asdict(record), file)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
        self._sync()

    def drop(self, uid: str) -> None:
        """Blocking. What is not there is success."""
        self._path(uid).unlink(missing_ok=True)
        self._sync()

    def all(self) -> Iterator[Record]:
        """Blocking. Takes away what is no record."""
        for path in sorted(self._folder.iterdir()):
            try:
                record = _record(json.loads(path.read_text()))
            except (ValueError, TypeError, KeyError):
                path.unlink(missing_ok=True)
                continue
            if path == self._path(record.uid):
                yield record
            else:
                path.unlink(missing_ok=True)  # a driver was killed before it was renamed

    def _path(self, uid: str) -> Path:
        return self._folder / f"{uid}.json"

    def _sync(self) -> None:
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _record(said: Mapping[str, Any]) -> Record:
    """Raises TypeError or KeyError."""
    return Record(**{**said, "parts": [Part(**part) for part in said["parts"]]})
