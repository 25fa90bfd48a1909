"""examples/compose: understood by docker-compose, with settings, commands and folders that there are; and started.

There is no registry with images of PostgreSQL and Redis here, and no NVIDIA container runtime. So what compose would
put into containers is started as processes: each service's own command, with the environment that compose makes for it.
"""

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.examples.conftest import EXAMPLES
from tests.support.appliance import ROOT
from tests.support.eventually import PATIENCE, until
from tests.support.ports import free_port
from tests.support.postgres import Postgres, running_postgres
from tests.support.redis_server import Redis, running_redis

COMPOSE = EXAMPLES / "compose" / "compose.yaml"
OURS = ("migrate", "scheduler", "web")
OTHERS = {"NVIDIA_DRIVER_CAPABILITIES"}  # NVIDIA's container runtime reads it
PROGRAM = shutil.which("docker-compose")
resolved = pytest.mark.skipif(PROGRAM is None, reason="needs docker-compose")


def compose(env: Path) -> subprocess.CompletedProcess[str]:
    words = [str(PROGRAM), "-f", str(COMPOSE), "--env-file", str(env), "config"]
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(env.parent)}
    return subprocess.run(words, env=bare, cwd=env.parent, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def env(tmp_path: Path) -> Path:
    """The example's, filled in as it says."""
    text = (COMPOSE.parent / "example.env").read_text()
    for name in ("GPUSHARE_SECRET_KEY", "POSTGRES_PASSWORD"):
        text = re.sub(rf"(?m)^{name}=$", f"{name}={'0123456789abcdef' * 4}", text)
    (tmp_path / ".env").write_text(text)
    return tmp_path / ".env"


@pytest.fixture
def services(env: Path) -> dict[str, Any]:
    # Where `make deb` writes; v1 looks whether it is there.
    (ROOT / ".build/packages").mkdir(parents=True, exist_ok=True)
    done = compose(env)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = yaml.safe_load(done.stdout)["services"]
    return found


@resolved
def test_docker_compose_understands_it(services: dict[str, Any]) -> None:
    assert set(services) == {"postgres", "redis", *OURS}


@resolved
@pytest.mark.parametrize(
    ("name", "sentence"),
    [("GPUSHARE_SECRET_KEY", 'make one with "openssl rand -hex 32"'), ("POSTGRES_PASSWORD", "choose one")],
)
def test_without_a_secret_nothing_starts(env: Path, name: str, sentence: str) -> None:
    env.write_text(re.sub(rf"(?m)^{name}=.*", f"{name}=", env.read_text()))
    done = compose(env)
    assert done.returncode != 0
    assert sentence in done.stderr


def test_every_variable_is_a_documented_setting() -> None:
    documented = set(re.findall(r"`([A-Z_]+)`", (ROOT / "docs/settings.md").read_text()))
    file = yaml.safe_load(COMPOSE.read_text())
    given = {name for each in OURS for name in file["services"][each]["environment"]}
    assert "GPUSHARE_HOME" in given
    assert given - documented == OTHERS
    asked = set(re.findall(r"\$\{(\w+)", COMPOSE.read_text()))
    offered = set(re.findall(r"(?m)^(\w+)=", (COMPOSE.parent / "example.env").read_text()))
    assert asked == offered
    assert asked - documented == {"POSTGRES_PASSWORD"}


@resolved
def test_the_scheduler_has_what_it_needs_of_the_host_and_the_web_side_has_not(services: dict[str, Any]) -> None:
    scheduler, web = services["scheduler"], services["web"]
    assert scheduler["pid"] == "host"
    volumes = {each: [volume.split(":")[:2] for volume in services[each]["volumes"]] for each in OURS}
    home = scheduler["environment"]["GPUSHARE_HOME"]
    assert all(
        [home, home] in mounted for mounted in volumes.values()
    )  # Docker mounts from there: the same path outside
    assert ["/run/docker.sock", "/run/docker.sock"] in volumes["scheduler"]
    assert volumes["web"] == [[home, home]]
    assert "pid" not in web
    assert "cap_add" not in web
    assert "deploy" not in web
    unit = (ROOT / "packaging/systemd/gpushare-scheduler.service").read_text()
    (bounded,) = re.findall(r"(?m)^CapabilityBoundingSet=(.*)", unit)
    assert {f"CAP_{each}" for each in scheduler["cap_add"]} == set(bounded.split())
    assert scheduler["user"].split(":")[1] == web["user"].split(":")[0]


def test_the_image_is_of_files_that_there_are() -> None:
    build = yaml.safe_load(COMPOSE.read_text())["x-gpushare"]["build"]
    context = (COMPOSE.parent / build["context"]).resolve()
    assert context == ROOT / ".build" / "packages"  # where `make deb` puts the package
    assert (context / build["dockerfile"]).resolve() == COMPOSE.parent / "Dockerfile"
    assert "COPY gpushare_*.deb" in (COMPOSE.parent / "Dockerfile").read_text()


@pytest.fixture
def stores() -> Iterator[tuple[Postgres, Redis]]:
    with ExitStack() as running:
        yield running.enter_context(running_postgres()), running.enter_context(running_redis())


@resolved
@pytest.mark.production
def test_its_commands_start_the_appliance(
    services: dict[str, Any], stores: tuple[Postgres, Redis], tmp_path: Path
) -> None:
    postgres, redis = stores
    port = str(free_port())
    # What differs from a host with cards, Docker and free ports.
    here = {"GPUSHARE_HOME": str(tmp_path / "home"), "DATABASE_URL": postgres.url, "REDIS_URL": redis.url, "PORT": port,
            "GPUSHARE_GPUS": "sim:1x1GiB", "GPUSHARE_ENGINE": "process", "GPUSHARE_GPU_ACCESS": "auto"}  # fmt: skip
    with ExitStack() as running:
        for name in ("migrate", "scheduler", "web"):
            environ = {key: here.get(key, value) for key, value in services[name]["environment"].items()}
            words = [sys.executable, *services[name]["command"][1:]]
            log = running.enter_context((tmp_path / f"{name}.log").open("w"))
            process = subprocess.Popen(words, cwd=ROOT, env={"PATH": "/usr/bin:/bin"} | environ, stdout=log, stderr=log)
            running.callback(process.wait, 60)
            running.callback(process.send_signal, signal.SIGTERM)
            if name == "migrate":
                assert process.wait(100) == 0, (tmp_path / "migrate.log").read_text()
        token = tmp_path / "home" / "admin-token"

        def node() -> Any:
            try:
                headers = {"Authorization": f"Token {token.read_text().strip()}"}
                answer = httpx.get(f"http://127.0.0.1:{port}/api/v1/nodes/", headers=headers, timeout=PATIENCE)
            except (OSError, httpx.TransportError):
                return None
            # The web side may answer before the scheduler has recorded what it found.
            rows = answer.json()["results"] if answer.is_success else []
            return [each for each in rows if each["engine"] and each["alive"]]

        (found,) = until(node, every=0.2)
        assert (found["name"], found["engine"]) == ("gpu1", "process")
