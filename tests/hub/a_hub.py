"""A JupyterHub in a process of its own, with the proxy that is usual, and the people of a test."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.support.appliance import ROOT, WORKLOAD, Appliance, until
from tests.support.ports import free_port

HUB = ROOT / ".build" / "hub"
PROXY = ROOT / ".build" / "hub-proxy" / "node_modules" / ".bin" / "configurable-http-proxy"
TOKEN = "a-token-of-the-tests-and-of-nobody-else"
SINGLEUSER = str(HUB / "bin" / "jupyterhub-singleuser")
SMALL, BUSY = "Small: 64 MiB", "Busy: takes its memory first"

CONFIG = """
import json
settings = json.loads({settings!r})
c.JupyterHub.bind_url = settings["url"]
c.JupyterHub.hub_port = settings["port"]
c.JupyterHub.spawner_class = "gpushare_jupyterhub.spawner.GpushareSpawner"
c.JupyterHub.authenticator_class = "dummy"
c.JupyterHub.cleanup_servers = False  # notebooks outlive the hub
c.JupyterHub.cleanup_proxy = True
c.JupyterHub.tornado_settings = {{"slow_spawn_timeout": 0, "slow_stop_timeout": 60}}
c.JupyterHub.last_activity_interval = 2
c.ConfigurableHTTPProxy.command = settings["proxy"]
c.ConfigurableHTTPProxy.auth_token = settings["token"]
c.Authenticator.allow_all = True
c.GpushareSpawner.appliance_url = settings["appliance"]
c.GpushareSpawner.appliance_token = settings["appliance_token"]
c.GpushareSpawner.bind_address = "127.0.0.1"
c.GpushareSpawner.poll_interval = 2
c.GpushareSpawner.http_timeout = 60
c.GpushareSpawner.grace = 5
c.GpushareSpawner.cmd = [settings["singleuser"], "--allow-root"]
c.GpushareSpawner.environment = settings["environment"]
c.GpushareSpawner.profiles = settings["profiles"]
c.JupyterHub.services = [{{"name": "tests", "api_token": settings["token"]}}]
c.JupyterHub.load_roles = [{{"name": "tests", "services": ["tests"], "scopes": [
    "admin:users", "admin:servers", "access:servers", "list:users", "read:users:activity"]}}]
"""


class Hub:
    def __init__(self, folder: Path, appliance: Appliance, appliance_token: str) -> None:
        self.folder = folder
        ports = [free_port() for _ in range(2)]
        self.url = f"http://127.0.0.1:{ports[0]}"
        first_takes = ["/bin/sh", "-c", f'{WORKLOAD} --bytes 700MiB --hold 0 || exit; exec "$@"', "sh"]
        settings = {
            "url": self.url,
            "port": ports[1],
            "proxy": [str(PROXY)],
            "token": TOKEN,
            "appliance": appliance.url,
            "appliance_token": appliance_token,
            "singleuser": SINGLEUSER,
            "environment": {"HOME": str(folder), "JUPYTERHUB_SINGLEUSER_APP": "jupyter_server.serverapp.ServerApp"},
            "profiles": [
                {"name": SMALL, "launch": {"image": "local"}, "choices": {"gpu_memory": ["64MiB", "128MiB"]}},
                {"name": BUSY, "launch": {"image": "local", "gpu_memory": "768MiB", "command": first_takes}},
            ],
        }
        (folder / "config.py").write_text(CONFIG.format(settings=json.dumps(settings)))
        self._log = (folder / "log").open("ab")
        self._client = httpx.Client(timeout=60, headers={"Authorization": f"token {TOKEN}"}, follow_redirects=True)

    def start(self) -> None:
        """Returns once it answers; the second time it finds what the first has left in its database."""
        self.process = subprocess.Popen(
            [str(HUB / "bin" / "jupyterhub"), "-f", str(self.folder / "config.py")],
            cwd=self.folder,
            env={"PATH": f"{HUB / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "contrib" / "jupyterhub"),
                 "HOME": str(self.folder)},
            stdout=self._log, stderr=self._log, start_new_session=True,
        )  # fmt: skip
        until(self._answers)

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log()[-3000:]
        try:
            return self._client.get(f"{self.url}/hub/api/").status_code == 200
        except httpx.TransportError:
            return False

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def kill(self) -> None:
        """Suddenly, and its proxy with it."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()
        self._client.close()
        self._log.close()

    def api(self, method: str, path: str, body: Any = None) -> httpx.Response:
        return self._client.request(method, f"{self.url}/hub/api/{path}", json=body)

    def begin(self, user: str, **options: str) -> None:
        """Asks for a server; does not wait for it."""
        self.api("POST", f"users/{user}")
        answer = self.api("POST", f"users/{user}/server", options)
        assert answer.status_code in (201, 202), answer.text

    def progress(self, user: str) -> Iterator[dict[str, Any]]:
        """What the page of a start shows, until it is over."""
        address = f"{self.url}/hub/api/users/{user}/server/progress"
        with self._client.stream("GET", address, timeout=120) as answer:
            for line in answer.iter_lines():
                if line.startswith("data:"):
                    event = json.loads(line.removeprefix("data:"))
                    yield event
                    if event.get("ready") or event.get("failed"):
                        return

    def server(self, user: str) -> dict[str, Any] | None:
        """The person's server as the hub knows it, if it runs."""
        found: dict[str, Any] = self.api("GET", f"users/{user}").json()["servers"]
        return found.get("")

    def notebook(self, user: str) -> httpx.Response:
        """What the notebook's own server answers, through the proxy."""
        return self._client.get(f"{self.url}/user/{user}/api/status")

    def cull(self, idle: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [str(HUB / "bin" / "jupyterhub-idle-culler"), f"--timeout={idle}", "--cull-every=2"],
            env={"PATH": os.environ["PATH"], "JUPYTERHUB_API_TOKEN": TOKEN,
                 "JUPYTERHUB_API_URL": f"{self.url}/hub/api"},
            stdout=self._log, stderr=self._log,
        )  # fmt: skip
