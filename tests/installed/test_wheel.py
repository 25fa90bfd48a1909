"""The command line alone, on somebody's own computer: `make wheel`, and pip in an empty environment."""

import os
import subprocess
import venv
from pathlib import Path

import pytest

from appliance import VERSION
from tests.support.appliance import ROOT, Appliance


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has it, and nothing that it does not ask for."""
    folder = tmp_path_factory.mktemp("alone")
    subprocess.run(["make", "-s", "wheel", f"BUILD={folder}"], cwd=ROOT, check=True, capture_output=True)
    venv.create(folder / "env", with_pip=True)
    wheel = folder / "packages" / f"gpushare-{VERSION}-py3-none-any.whl"
    install = [str(folder / "env/bin/python"), "-m", "pip", "install", "-q", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    return folder / "env" / "bin"


def test_it_brings_little(alone: Path) -> None:
    listed = subprocess.run([str(alone / "python"), "-m", "pip", "list"], check=True, capture_output=True, text=True)
    names = {line.split()[0].lower() for line in listed.stdout.splitlines()[2:]} - {"pip", "setuptools"}
    assert {"gpushare", "httpx", "typer", "websockets"} <= names
    assert not names & {"django", "channels", "docker", "cffi", "psycopg", "uvicorn"}
    assert len(names) <= 25
    files = subprocess.run(
        [str(alone / "python"), "-m", "pip", "show", "-f", "gpushare"], check=True, capture_output=True
    )
    assert b"appliance/cli/main.py" in files.stdout
    assert b"settings.py" not in files.stdout


def test_it_works_with_an_appliance_elsewhere(alone: Path, tmp_path: Path) -> None:
    appliance = Appliance(tmp_path / "home")
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LANG": "C.UTF-8"}

    def gpushare(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [str(alone / "gpushare"), *words]
        return subprocess.run(command, env=environ, cwd="/", input=stdin, capture_output=True, text=True, check=False)

    try:
        login = gpushare("login", appliance.url, "--token-stdin", stdin=appliance.token)
        assert login.returncode == 0, login.stderr
        done = gpushare("run", "--gpu-memory", "256MiB", "local", "workload", "--bytes", "64MiB")
        assert (done.returncode, "every byte is right" in done.stdout) == (0, True), done.stderr
        assert "Simulated GPU" in gpushare("gpus").stdout
        doctor = gpushare("doctor")
        assert (doctor.returncode, "only the command line is installed here" in doctor.stderr) == (
            2,
            True,
        ) or doctor.stderr
    finally:
        appliance.close()
