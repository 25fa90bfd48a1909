"""A Redis server of the test's own, from the distribution's packages."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

from tests.support.eventually import PATIENCE
from tests.support.ports import free_port

BIN = shutil.which("redis-server")


class Redis:
    """After `stop`, `start` brings it back on the same port, empty."""

    def __init__(self, folder: str, address: str = "127.0.0.1") -> None:
        self._folder, self._address = folder, address
        self._port = free_port(address)
        self.url = f"redis://{address}:{self._port}/0"
        self.start()

    def start(self) -> None:
        assert BIN is not None
        place = ["--port", str(self._port), "--bind", self._address, "--protected-mode", "no"]
        options = [*place, "--save", "", "--dir", self._folder]
        self._process = subprocess.Popen([BIN, *options], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + PATIENCE
        while not self._answers():
            assert self._process.poll() is None, "redis-server has ended"
            assert time.monotonic() < deadline, "redis-server does not answer"
            time.sleep(0.02)

    def _answers(self) -> bool:
        with socket.socket() as asker:
            return asker.connect_ex((self._address, self._port)) == 0

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(60)


@contextmanager
def running_redis(address: str = "127.0.0.1") -> Iterator[Redis]:
    with TemporaryDirectory(prefix="redis-") as folder:
        redis = Redis(folder, address)
        try:
            yield redis
        finally:
            redis.stop()
