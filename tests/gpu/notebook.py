"""A real ipykernel, and a client of it that pings it as a notebook server does."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.gpu.conftest import Appliance
from tests.gpu.swapped import LONG


@contextmanager
def client_of(file: Path) -> Iterator[Any]:
    """Of the kernel with this connection file, as soon as it is there. Pings it each second, as a server does."""
    from jupyter_client.blocking.client import BlockingKernelClient

    Appliance.until(lambda: file.exists() and file.stat().st_size > 0, "the kernel to begin", LONG)
    client = BlockingKernelClient(connection_file=str(file))
    client.load_connection_file()
    client.start_channels()
    client.wait_for_ready(LONG)
    client.hb_channel.unpause()
    yield client
    client.stop_channels()


def run_cell(client: Any, code: str) -> None:
    assert client.execute_interactive(code, timeout=LONG)["content"]["status"] == "ok"
