"""The two services over PostgreSQL, as docs/production.md tells it; each may be stopped, killed and started."""

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from tests.support.appliance import ROOT, WORKLOAD, asked, followed, http
from tests.support.eventually import PATIENCE
from tests.support.own_home import clean_environ
from tests.support.postgres import Postgres
from tests.support.redis_server import Redis


class Production:
    """Both services, each of which may be stopped and started without the other.

    `migrated`: the database has its tables already.
    """

    def __init__(
        self, home: Path, postgres: Postgres, redis: Redis | None = None, *, migrated: bool = False, **environ: str
    ) -> None:
        self.home, self.postgres = home, postgres
        if redis is not None:
            self.redis = redis
            environ = {"REDIS_URL": redis.url, **environ}
        self._environ = clean_environ() | {
            "GPUSHARE_HOME": str(home),
            "GPUSHARE_GPUS": "sim:1x1GiB",
            "GPUSHARE_ENGINE": "process",
            "GPUSHARE_POLICY": "fifo",
            "DATABASE_URL": postgres.url,
            **environ,
        }
        self._log = (home.parent / "services.log").open("ab")
        self._services: dict[str, subprocess.Popen[bytes]] = {}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        if not migrated:
            self.manage("migrate", "-v0")

    def start_scheduler(self, *program: str, **environ: str) -> None:
        """`program`: what runs it, if that is not `manage.py`."""
        self._start("scheduler", *(program or ("manage.py",)), "runscheduler", **environ)

    def start_web(self) -> None:
        number = self._listener.fileno()
        self._start("web", "manage.py", "runweb", "--fd", str(number))

    def _start(self, name: str, *words: str, **environ: str) -> None:
        self._services[name] = subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT, env=self._environ | environ,
            stdout=self._log, stderr=self._log, pass_fds=[self._listener.fileno()],
        )  # fmt: skip

    def stop(self, name: str) -> None:
        service = self._services.pop(name)
        service.send_signal(signal.SIGTERM)
        assert service.wait(PATIENCE) in (0, -signal.SIGTERM), self.said()

    def kill(self, name: str) -> None:
        """As `kill -9` does, if it has not ended."""
        service = self._services.pop(name)
        service.kill()
        service.wait(PATIENCE)

    def process(self, name: str) -> subprocess.Popen[bytes]:
        return self._services[name]

    def has_ended(self, name: str) -> bool:
        return self._services[name].poll() is not None

    def manage(self, *words: str, stderr: int | None = None, **environ: str) -> str:
        """What a command of `manage.py` prints. `stderr`: as for subprocess.run."""
        command = [sys.executable, "manage.py", *words]
        done = subprocess.run(
            command, cwd=ROOT, env=self._environ | environ, check=True, text=True, timeout=120,
            stdout=subprocess.PIPE, stderr=stderr,
        )  # fmt: skip
        return done.stdout

    def said(self) -> str:
        return Path(self._log.name).read_text()[-30_000:]

    def ready(self) -> bool:
        try:
            return http.get(f"http://{self.address}/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def api(self, method: str, path: str, body: Any = None) -> Any:
        token = (self.home / "admin-token").read_text().strip()
        headers = {"Authorization": f"Token {token}"}
        answer = asked(method, f"http://{self.address}/api/v1/{path}", json=body, headers=headers)
        return followed(self.api, answer)

    def hold(self, name: str, size: str) -> str:
        """Launches a container that takes `size` and keeps it."""
        body = {
            "name": name,
            "image": "local",
            "command": [WORKLOAD, "--bytes", size, "--hold", "3600"],
            "gpu_memory": "700MiB",
        }
        return self.launch(body)

    def launch(self, body: dict[str, Any]) -> str:
        """Its id."""
        return str(self.api("POST", "containers/", body)["id"])

    def state(self, container: str) -> str:
        return str(self.api("GET", f"containers/{container}/")["state"])

    def used(self, container: str) -> int:
        """Bytes, on all of its cards."""
        return sum(gpu["used"] for gpu in self.api("GET", f"containers/{container}/")["gpus"])

    def sign_in(self) -> str:
        """The Cookie header of a browser that has signed in."""
        with httpx.Client(base_url=f"http://{self.address}", timeout=PATIENCE) as browser:
            page = browser.get("/login/").raise_for_status().text
            (hidden,) = re.findall(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
            password = (self.home / "admin-token").read_text().strip()
            form = {"csrfmiddlewaretoken": hidden, "username": "admin", "password": password}
            answer = browser.post("/login/", data=form, headers={"Referer": str(browser.base_url)})
            assert answer.status_code == 302, answer.text
            return "; ".join(f"{name}={value}" for name, value in browser.cookies.items())

    def close(self) -> None:
        for name in list(self._services):
            self.stop(name)
        self._listener.close()
        self._log.close()


def end_all(folder: Path) -> None:
    """Every process that has this folder in its command or its environment, such as containers that a test has left."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = Path(path, "cmdline").read_bytes() + Path(path, "environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in words and int(path.name) != os.getpid():
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(int(path.name), signal.SIGKILL)
