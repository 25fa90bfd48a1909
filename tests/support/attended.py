"""An appliance in which whatever needs attention can be made so: its card and its host's memory are files."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.appliance import WORKLOAD, Appliance, until
from tests.support.dockerd import dockerd
from tests.support.postgres import Postgres

__all__ = ["dockerd"]

MEMORY = 16 << 30


class Running(Appliance):
    """`card` is the file of its simulated card, `memory` what it takes for its host's."""

    postgres: Postgres
    memory: Path
    orders: subprocess.Popen[str]  # what only the simulated NVML has is called there

    @property
    def card(self) -> Path:
        return self.home / "card" / "2x1073741824"

    def order(self, name: str, *numbers: int) -> None:
        """Returns when it was done."""
        assert self.orders.stdin
        assert self.orders.stdout
        self.orders.stdin.write(" ".join(map(str, (name, *numbers))) + "\n")
        self.orders.stdin.flush()
        assert self.orders.stdout.readline() == "\n"

    def items(self, kind: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.api("GET", "attention/")["results"]
        return [item for item in items if item["kind"] == kind]

    def raised(self, kind: str, about: str = "", before_each_look: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """The item of this kind whose sentence has this in it, once there is one."""

        def there() -> dict[str, Any] | None:
            before_each_look()
            return next((item for item in self.items(kind) if about in item["message"]), None)

        item = until(there)
        assert item["acts"] or item["command"], f"{kind} says nothing that can be done about it"
        return item  # type: ignore[no-any-return]

    def cleared(self, kind: str) -> None:
        until(lambda: not self.items(kind))

    def uuid(self, gpu: int) -> str:
        return next(
            str(each["uuid"])
            for each in self.api("GET", "gpus/")["results"]
            if each["index"] == gpu and each["present"]
        )

    def holds(self, name: str, *more: str, size: str = "500MiB", gpu: int = 0) -> dict[str, Any]:
        """Launches one that takes so much and keeps it, and does `more` meanwhile."""
        words = [WORKLOAD, "--bytes", size, *(more or ("--hold", "600"))]
        return self.launch(*words, name=name, gpu_memory="700MiB", gpus=[self.uuid(gpu)])

    def act(self, container: dict[str, Any], action: str, **body: Any) -> None:
        self.api("POST", f"containers/{container['id']}/{action}/", body)

    def is_in(self, container: dict[str, Any], state: str) -> None:
        until(lambda: self.api("GET", f"containers/{container['id']}/")["state"] == state)

    def remember(self, free: int) -> None:
        """The host's memory has so much left."""
        self.memory.write_text(f"MemTotal: {MEMORY >> 10} kB\nMemFree: 0 kB\nMemAvailable: {free >> 10} kB\n")
