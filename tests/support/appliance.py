"""A whole appliance in a process of its own: ASGI server, scheduler, the simulated card, local processes.

    def test_something(appliance):
        appliance.api("POST", "containers/", {"image": "local", "command": ["true"]})

`appliance.environ` leads the command line to it. Ended by `close`, with every container.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx

from tests.support import eventually
from tests.support.eventually import PATIENCE
from tests.support.own_home import clean_environ
from tests.support.running import children, comm
from tests.support.tables import begin_with_tables

T = TypeVar("T")

# For all that asks: one made for each request would read the machine's certificates, 28 ms of CPU time.
# No connection is kept, because whoever answered may be another process by the next request.
http = httpx.Client(timeout=PATIENCE, limits=httpx.Limits(max_keepalive_connections=0))

ROOT = Path(__file__).resolve().parents[2]
WORKLOAD = str(ROOT / ".build" / "workload")


class Appliance:
    def __init__(
        self,
        home: Path,
        gpus: str = "sim:1x1GiB",
        program: Sequence[str] = (str(ROOT / "manage.py"),),
        within: Sequence[str] = (),
        **environ: str,
    ) -> None:
        """`within`: a command that becomes the one that follows it. A new home has its tables already."""
        self.home = home
        self.database = home / "database/gpushare.sqlite3"
        if not home.exists():
            home.mkdir(mode=0o750)
            begin_with_tables(self.database)
        self._command = [*within, sys.executable, *program, "up"]
        self.port = "0"
        self._environ = {"GPUSHARE_GPUS": gpus, "GPUSHARE_ENGINE": "process", "GPUSHARE_POLICY": "fifo", **environ}
        self._log = (home.parent / f"{home.name}.log").open("ab")
        self.start()

    def start(self) -> None:
        """Returns once it answers; the second time on the port of the first."""
        self.process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            env=clean_environ()
            | self._environ
            | {"GPUSHARE_HOME": str(self.home), "PORT": self.port, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert self.process.stdout is not None
        up = self.process.stdout.readline()
        assert "http://" in up, Path(self._log.name).read_text()[-3000:]
        self.url = up[up.index("http://") :].strip()
        self.port = self.url.rpartition(":")[2]
        self.token = (self.home / "admin-token").read_text().strip()

    def crash(self) -> None:
        """As `kill -9` of all its processes would: nothing is announced."""
        parts = self.parts()
        self.process.kill()  # first: it would start the others again
        for pid in parts.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._reap()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in parts.values()))

    def parts(self) -> dict[str, int]:
        """The process ids of "web" and "scheduler", those that run."""
        return {name: pid for pid in children(self.process.pid) if (name := comm(pid))}

    def close(self) -> None:
        self.end_all()
        self.process.send_signal(signal.SIGTERM)
        self._reap()
        self._log.close()

    def _reap(self) -> None:
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()

    @property
    def environ(self) -> dict[str, str]:
        return {"GPUSHARE_URL": self.url, "GPUSHARE_TOKEN": self.token}

    def api(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Token {self.token}"}
        while True:
            answer = asked(method, f"{self.url}/api/v1/{path}", json=body, headers=headers)
            if answer.status_code != httpx.codes.TOO_MANY_REQUESTS:
                return followed(self.api, answer)
            time.sleep(float(answer.headers["retry-after"]))

    def containers(self, **filters: str) -> list[dict[str, Any]]:
        """Those that live, or as the filters say."""
        query = "&".join(f"{name}={value}" for name, value in (filters or {"live": "true"}).items())
        found: list[dict[str, Any]] = self.api("GET", f"containers/?{query}")["results"]
        return found

    def end_all(self) -> list[dict[str, Any]]:
        """Kills what lives; those who lived."""
        living = self.containers()
        for container in living:
            with contextlib.suppress(httpx.HTTPStatusError):  # it ended meanwhile
                self.api("POST", f"containers/{container['id']}/kill/", {})
        return living

    def named(self, name: str) -> dict[str, Any]:
        return self.containers(name=name)[0]

    def launch(self, *command: str, **fields: Any) -> dict[str, Any]:
        made: dict[str, Any] = self.api("POST", "containers/", {"image": "local", "command": command, **fields})
        return made


def asked(method: str, url: str, **words: Any) -> httpx.Response:
    """Asks until the scheduler is there: on a busy machine its sign of life may be late."""
    while '"code":"scheduler_away"' in (answer := http.request(method, url, **words)).text:
        time.sleep(float(answer.headers["retry-after"]))
    return answer


def followed(api: Callable[..., Any], answer: httpx.Response) -> Any:
    """What the answer says; of a 202, the promise that a busy machine gives, what it would have said once it is done.

    `api(method, path)` asks again as the same person. Raises HTTPStatusError, also of a promise that is not kept.
    """
    if answer.is_error:
        asked = answer.request
        text = f"{asked.method} {asked.url}: {answer.status_code} {answer.text}"
        raise httpx.HTTPStatusError(text, request=asked, response=answer)
    said: Any = answer.json() if answer.content else None
    if answer.status_code != httpx.codes.ACCEPTED or not said.get("command"):
        return said
    command = until(lambda: (text := api("GET", f"commands/{said['command']}/"))["done"] and text)
    if command["outcome"] != "done":
        raise httpx.HTTPStatusError(command["message"], request=answer.request, response=answer)
    return api("GET", f"containers/{command['container']}/") if command["container"] else command


def until(condition: Callable[[], T], within: float = PATIENCE) -> T:
    """The first true value of `condition`, looked at as often as who asks a server may: it counts."""
    return eventually.until(condition, within, every=0.1)
