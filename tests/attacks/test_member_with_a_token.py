"""A member with a token, who may launch containers and write to a folder of the host: never to read root's files."""

import ctypes
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.appliance import Appliance, until
from tests.support.dockerd import IMAGE, Dockerd
from tests.support.eventually import PATIENCE

pytestmark = pytest.mark.docker

LAUNCHES, AT_ONCE = 50, 5
RENAME_EXCHANGE = 2


@contextmanager
def exchanging(one: Path, other: Path) -> Iterator[None]:
    """Inside, the two names change places all the time."""
    libc, stop = ctypes.CDLL(None, use_errno=True), threading.Event()

    def exchange() -> None:
        while not stop.is_set():
            assert libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), RENAME_EXCHANGE) == 0
            stop.wait(0.001)

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_a_folder_that_is_all_the_time_exchanged_for_a_link_shows_no_container_what_it_leads_to(
    dockerd: Dockerd, tmp_path: Path
) -> None:
    secrets, folder = tmp_path / "secrets", tmp_path / "data" / "mine"
    for place, text in ((secrets, "root's own"), (folder, "harmless")):
        place.mkdir(parents=True)
        (place / "file").write_text(f"{text}\n")
    link = tmp_path / "data" / "link"
    link.symlink_to(secrets)
    appliance = Appliance(
        tmp_path / "var",
        GPUSHARE_ENGINE="docker",
        GPUSHARE_DOCKER_HOST=dockerd.address,
        GPUSHARE_VOLUME_ROOTS=str(tmp_path / "data"),
    )

    key = {"Authorization": f"Token {appliance.token}"}

    def launch(number: int) -> str:
        """What the container has read; why it was refused, else."""
        asked = {"image": IMAGE, "volumes": [f"{folder}:/d"], "name": f"c{number}", "gpu_memory": "16MiB"}
        try:
            id_ = appliance.launch("cat", "/d/file", **asked)["id"]
        except httpx.HTTPStatusError as refused:
            return str(refused.response.json()["error"]["message"])
        until(lambda: appliance.api("GET", f"containers/{id_}/")["state"] in ("exited", "failed"))
        answer = httpx.get(f"{appliance.url}/api/v1/containers/{id_}/logs/?follow=1", headers=key, timeout=PATIENCE)
        return answer.raise_for_status().text

    try:
        with exchanging(folder, link), ThreadPoolExecutor(AT_ONCE) as people:
            seen = list(people.map(launch, range(LAUNCHES)))
        # Nobody else was held up, and the folder itself is as good as ever once it stays where it is.
        if folder.is_symlink():
            os.rename(link, tmp_path / "data" / "aside")
            folder.unlink()
            (tmp_path / "data" / "aside").rename(folder)
        assert launch(LAUNCHES) == "harmless\n"
    finally:
        appliance.close()
    assert not [text for text in seen if "root's own" in text]
    assert {text for text in seen if "is a link" not in text} == {"harmless\n"}, seen
