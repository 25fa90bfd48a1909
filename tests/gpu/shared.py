"""Containers on two GPUs whose memory is shared between processes or GPUs are not moved to host memory.

    python -m tests.gpu.shared [--gpus SPEC] [--scale S] [--out FOLDER] [KIND …]

KIND: nccl (two ranks of torch.distributed), ipc (CUDA IPC), handles (exported cuMem handles), peer (peer access). For
each, in an appliance with the process engine: `pause --free` is refused and says why; one that waits for memory is
served by an idle holder that shares nothing, and not by this one (idle and rotation); then the next collective, or
look through the shared memory, is right. Writes FOLDER/shared.json (FOLDER: $OUT) and prints a line for each kind;
exits 1 if anything is wrong. Needs no Docker. With `--gpus sim:2x2GiB --scale 0.125` all but nccl run on the simulated
card: at its full size the holder that is to give way does not fit into half of a small host's memory.
"""

import argparse
import itertools
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import httpx

from tests.support.appliance import ROOT, Appliance, until

GIB = 1 << 30
LONG = 180.0  # seconds in which two ranks have imported PyTorch and begun
SHARES, GOES, WAITS = 1.0, 5.0, 9.0  # GiB on each of two GPUs of 16 GiB
KINDS = ("nccl", "ipc", "handles", "peer")
# NVLink multicast is not every machine's to use.
ENVIRONMENT = {"NCCL_NVLS_ENABLE": "0", "PYTHONPATH": str(ROOT), "USER": "root", "HOME": "/tmp"}


class Job:
    def __init__(self, appliance: Appliance, folder: Path, kind: str, gib: float, quota: float) -> None:
        self.appliance, self.folder = appliance, folder
        self.said_in = [folder / "0", folder / "1"] if kind == "nccl" else [folder]
        self._numbers = itertools.count(1)
        folder.mkdir(mode=0o777)
        words = [sys.executable, str(ROOT / "tests/gpu/job_shared.py"), str(folder), kind, str(gib)]
        made = appliance.launch(
            *words, name=folder.name, gpu_memory=int(quota * GIB), gpus=2, env=ENVIRONMENT,
        )  # fmt: skip
        self.id = made["id"]

    def get(self) -> dict[str, Any]:
        found: dict[str, Any] = self.appliance.api("GET", f"containers/{self.id}/")
        return found

    def said(self, number: int) -> list[str]:
        """The answers of all its processes to this question; empty while one is missing."""
        found = []
        for folder in self.said_in:
            lines = (folder / "said").read_text().split("\n")[:-1] if (folder / "said").exists() else []
            found += [line.partition(" ")[2] for line in lines if line.split()[0] == str(number)]
        return found if len(found) == len(self.said_in) else []

    def is_right(self, number: int | None = None) -> list[str]:
        if number is None:
            number = next(self._numbers)
            (self.folder / "asking").write_text(str(number))
            (self.folder / "asking").rename(self.folder / "ask")

        def answered() -> list[str]:
            state = self.get()["state"]
            assert state in ("created", "running", "suspended", "swapped"), f"it is {state}: {self.get()['reason']}"
            return self.said(number)

        return until(answered, LONG)

    def events(self, *kinds: str) -> list[str]:
        asked = [self.appliance.api("GET", f"allocations/?container={self.id}&kind={kind}") for kind in kinds]
        return [f"{event['kind']}: {event['detail']}" for answer in asked for event in answer["results"]]

    def end(self) -> None:
        self.appliance.api("POST", f"containers/{self.id}/kill/", {})
        until(lambda: self.get()["finished_at"])


def pause(appliance: Appliance, job: Job) -> dict[str, Any]:
    """What `pause --free` answers."""
    try:
        answer = appliance.api("POST", f"containers/{job.id}/pause/", {"free_memory": True})
    except httpx.HTTPStatusError as error:
        return {"status": error.response.status_code, "message": str(error)}
    return {"status": 200, "message": answer["message"]}


def look(appliance: Appliance, folder: Path, kind: str, scale: float) -> dict[str, Any]:
    """What was found; `wrong` names what should not be so."""
    found: dict[str, Any] = {"wrong": []}
    jobs: list[Job] = []

    def check(name: str, value: Any, fine: bool) -> None:
        found[name] = value
        found["wrong"] += [] if fine else [name]

    try:
        jobs.append(shares := Job(appliance, folder / kind, kind, SHARES * scale, 4.0 * scale))
        first = shares.is_right(0)
        check("begins", first, set(first) == {"right"})
        why = until(lambda: shares.get()["cannot_move"])
        check("cannot_move", why, "shares GPU memory" in why)
        refused = pause(appliance, shares)
        check("pause", refused, refused["status"] == 409 and "cannot bring such memory back" in refused["message"])
        answers = shares.is_right()
        check("after_the_pause", answers, set(answers) == {"right"})
        jobs.append(goes := Job(appliance, folder / f"{kind}-goes", "alone", GOES * scale, 7.0 * scale))
        goes.is_right(0)
        jobs.append(waits := Job(appliance, folder / f"{kind}-waits", "alone", WAITS * scale, 11.0 * scale))
        served = waits.is_right(0)
        check("waits", served, served == ["right"])
        check("another_gave_way", goes.events("swapped_out"), bool(goes.events("swapped_out")))
        stayed = shares.events("swapped_out", "not_moved", "not_restored")
        check("moved", stayed, not stayed)
        check("state", shares.get()["state"], shares.get()["state"] in ("running", "suspended"))
        answers = shares.is_right()
        check("next", answers, set(answers) == {"right"})
        waits.end()
        back = goes.is_right()
        check("another_came_back", back, back == ["right"])
    except Exception as error:
        found["wrong"].append(f"it ended with {error!r}")
        found["traceback"] = traceback.format_exc()[-4000:]
    finally:
        for job in jobs:
            found.setdefault("containers", {})[job.folder.name] = job.get() | {"env": None}
        appliance.end_all()
        until(lambda: not appliance.containers())
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], default=[])
    parser.add_argument("--gpus", default="nvidia:cap=16GiB")
    parser.add_argument("--scale", type=float, default=1.0, help="Of all sizes, which are made for cards of 16 GiB.")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    given = parser.parse_args()
    kinds = given.kinds or [kind for kind in KINDS if kind != "nccl" or not given.gpus.startswith("sim")]
    folder = Path(tempfile.mkdtemp(prefix="gpushare-shared-"))
    folder.chmod(0o777)
    rules = {"GPUSHARE_IDLE_MINUTES": "0.05", "GPUSHARE_ROTATE_AFTER": "0.05", "GPUSHARE_GIVE_WAY": "rotate"}
    appliance = Appliance(folder / "home", given.gpus, **rules)
    found: dict[str, Any] = {}
    try:
        for kind in kinds:
            found[kind] = look(appliance, folder, kind, given.scale)
            print(kind, "wrong: " + ", ".join(found[kind]["wrong"]) if found[kind]["wrong"] else "right", flush=True)
            given.out.mkdir(parents=True, exist_ok=True)
            (given.out / "shared.json").write_text(json.dumps(found, indent=1, default=str) + "\n")
    finally:
        appliance.close()
        log = folder / "home.log"
        (given.out / "shared.log").write_bytes(log.read_bytes() if log.exists() else b"")
    return int(any(each["wrong"] for each in found.values()))


if __name__ == "__main__":
    sys.exit(main())
