"""A server in a container whose GPU memory gave way, and the first answer to somebody who comes to it by its port.

    python -m tests.gpu.woken [--docker] [--gpus SPEC] [--card N] [--gib 16] [--times 5] [--seconds S] [--out FOLDER]

The server holds GIB, and looks at all of it for each request. Again and again another container needs the card; once
that has ended, a request comes through `gpushare open`. Shown are the seconds to the first byte, and those of the move.
Writes FOLDER/woken.json (FOLDER: $OUT); exits 1 if anything is wrong. `--gpus sim:1x40GiB` tries the script.
"""

from __future__ import annotations

import argparse
import http.client
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.gpu import host_image
from tests.gpu.bare_calls import Found
from tests.support.appliance import ROOT, Appliance, until

GIB = 1 << 30
PORT, LONG = 8080, 120.0
LATER, SLOWEST = 0.5, 6.0  # seconds more than the move; at all
ENVIRONMENT = {"PYTHONPATH": host_image.PATHS, "USER": "root", "HOME": "/tmp"}


def serve(gib: int, sim: bool) -> None:
    """Each request's answer is what it finds in its memory: always the same."""
    if sim:
        from tests.support.cuda import Cuda

        cuda = Cuda()
        address = cuda.alloc(gib * GIB)
        cuda.write(address, b"12345678")
        look = lambda: cuda.read(address, 8).decode()  # noqa: E731
    else:
        import torch

        blocks = [torch.full((GIB // 4,), number, dtype=torch.int32, device="cuda") for number in range(gib)]
        look = lambda: str([int(block.max()) + int(block.min()) for block in blocks])  # noqa: E731

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            said = look().encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

    HTTPServer(("127.0.0.1", PORT), Answer).serve_forever()


def asked(address: str) -> tuple[float, str]:
    """Seconds to the first byte of an answer, and the answer."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection("127.0.0.1", parts.port, timeout=LONG)
    begun = time.monotonic()
    connection.request("GET", "/", headers={"Host": parts.netloc})
    answer = connection.getresponse()
    took = time.monotonic() - begun
    said = answer.read().decode()
    connection.close()
    return took, said if answer.status == 200 else f"{answer.status} {said}"


def play(options: argparse.Namespace, stack: ExitStack) -> int:
    found, sim = Found(options.out / "woken.json", options.seconds), options.gpus.startswith("sim")
    within = host_image.engine(stack) if options.docker else None
    more = {"GPUSHARE_GIVE_WAY": "idle", "GPUSHARE_IDLE_MINUTES": "0.03"} | (within.settings if within else {})
    appliance = Appliance(Path(tempfile.mkdtemp()) / "home", options.gpus, **more)
    stack.callback(appliance.close)
    card = appliance.api("GET", "gpus/")["results"][options.card]
    fields: dict[str, Any] = {"gpus": [card["uuid"]]}
    python = sys.executable
    if within:
        python = host_image.PYTHON
        fields |= {"image": within.image, "volumes": list(within.volumes), "env": ENVIRONMENT}
    words = [python, "-m", "tests.gpu.woken", "--serve", "sim" if sim else "torch", "--gib", str(options.gib)]
    server = appliance.launch(*words, name="server", gpu_memory=(options.gib + 3) * GIB, **fields)["id"]

    def its() -> Any:
        return appliance.api("GET", f"containers/{server}/")

    opening = [
        sys.executable,
        "-c",
        "from appliance.cli import main; main()",
        "open",
        server,
        str(PORT),
        "--no-browser",
    ]
    opened = subprocess.Popen(opening, cwd=ROOT, env=os.environ | appliance.environ, stdout=subprocess.PIPE, text=True)
    stack.callback(opened.wait)
    stack.callback(opened.terminate)
    assert opened.stdout
    address = opened.stdout.readline().strip()
    right = [asked(address) for _ in range(3)]
    found.say("answers while it is there", [[round(took, 3), said[:40]] for took, said in right], bool(right[0][1]))
    for number in range(options.times):
        if not found.has_time(f"waking {number}", 30):
            break
        fills = (card["total"] - options.gib * GIB // 2) // GIB - 3
        other = appliance.launch(
            *words[:-1], str(fills), name=f"other-{number}", gpu_memory=(fills + 2) * GIB, **fields
        )["id"]
        until(lambda: its()["state"] == "swapped", LONG)
        appliance.api("POST", f"containers/{other}/kill/", {})
        until(lambda: appliance.api("GET", f"containers/{other}/")["finished_at"], LONG)  # noqa: B023
        still = its()["state"]
        took, said = asked(address)
        events = appliance.api("GET", f"allocations/?container={server}&kind=swapped_in&page_size=1")["results"]
        back = float(re.search(r"It took ([\d.]+) s", events[0]["detail"])[1])  # type: ignore[index]
        fine = said == right[0][1] and took <= back + LATER and took <= SLOWEST and still == "swapped"
        found.say(f"waking {number}: first byte, move, before", [round(took, 2), back, still], fine)
    return 1 if found.wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docker", action="store_true")
    parser.add_argument("--gpus", default="nvidia")
    parser.add_argument("--card", type=int, default=0, help="which of the host's")
    parser.add_argument("--gib", type=int, default=16)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--serve", choices=["sim", "torch"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.gib, options.serve == "sim")
    with ExitStack() as stack:
        return play(options, stack)


if __name__ == "__main__":
    sys.exit(main())
