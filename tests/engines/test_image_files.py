"""What is looked for in a container that has not begun, and what Docker's answer says of it."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from scheduler.engines.base import EngineError
from scheduler.engines.docker import image_files, versions
from scheduler.engines.docker.image_files import Preloads, Programs
from web.spec.inside.reserved import SHIM


class Api:
    """Docker's, as far as a look needs it: paths it shows, and with which status it answers for all others."""

    base_url, api_version, timeout = "http://docker", "1.41", 60

    def __init__(self, *shown: str, status: int = 404) -> None:
        self.shown, self.status = shown, status

    @contextmanager
    def head(self, _: str, *, params: dict[str, str], timeout: float) -> Iterator[Any]:
        if params["path"] not in self.shown:
            yield SimpleNamespace(status_code=self.status, headers={})
            return
        kind = base64.b64encode(json.dumps({"mode": 0o755, "linkTarget": ""}).encode()).decode()
        yield SimpleNamespace(status_code=200, headers={"X-Docker-Container-Path-Stat": kind})

    @contextmanager
    def get(self, _: str, *, params: dict[str, str], timeout: float, stream: bool) -> Iterator[Any]:
        yield SimpleNamespace(status_code=self.status, text=f"Docker cannot show {params['path']}")


def require(api: Api, program: str, *, toolkit: bool = False) -> None:
    Programs(api, toolkit=toolkit).require("c", [program], path="/bin:/usr/bin", folder="/", known_by="x")


def test_a_program_is_there_or_the_launch_is_refused() -> None:
    require(Api("/usr/bin/python3"), "python3")
    with pytest.raises(EngineError, match="The image has no program 'python3' in any folder of its PATH"):
        require(Api(), "python3")


def test_what_nvidias_toolkit_brings_as_the_container_begins_is_not_missed() -> None:
    require(Api(), "nvidia-smi", toolkit=True)
    require(Api(), "/usr/bin/nvidia-smi", toolkit=True)
    with pytest.raises(EngineError, match="no program 'nvidia-smi'"):
        require(Api(), "nvidia-smi")
    with pytest.raises(EngineError, match="no program 'python3'"):
        require(Api(), "python3", toolkit=True)


def test_of_what_images_preload_no_more_is_kept_than_for_the_last_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_files, "IMAGES", 3)
    looked: list[str] = []
    preloads = Preloads(MagicMock(), tmp_path, tmp_path / "ours")
    monkeypatch.setattr(preloads, "_read", lambda id_: looked.append(id_) or b"theirs.so")
    for number in range(8):
        assert preloads.file_for(f"image-{number}").read_text() == f"{SHIM}\ntheirs.so"
    assert preloads.file_for("image-7").exists()
    assert len(looked) == 8
    assert len(preloads._found) <= 3


def test_a_look_that_docker_refuses_is_no_missing_program() -> None:
    require(Api(status=500), "python3")


@pytest.mark.parametrize(
    ("components", "good"),
    [
        ([], False),
        ([{"Name": versions.TOOLKIT, "Version": "1.17.4"}], False),
        ([{"Name": versions.TOOLKIT, "Version": "unknown"}], False),
        ([{"Name": versions.TOOLKIT, "Version": "1.17.8"}], True),
    ],
)
def test_a_toolkit_is_trusted_by_its_version_alone(components: list[dict[str, str]], good: bool) -> None:
    assert versions.known_good(components) is good
