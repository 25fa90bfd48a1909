"""docs/nodes.md, "Two hosts, command by command": what it has PostgreSQL and Redis do, its settings, and the join.

Not its apt and systemctl, and no host but this one: addresses, ports and the name of the role are the test's.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psycopg

from appliance import envfile
from tests.support.appliance import ROOT, http, until
from tests.support.documents import blocks
from tests.support.eventually import PATIENCE
from tests.support.ports import free_port
from tests.support.postgres import Postgres, running_postgres
from tests.support.production import Production
from tests.support.redis_server import BIN as REDIS

PAGE = ROOT / "docs" / "nodes.md"
COMMANDS, SETTINGS = (text for _, text in blocks(PAGE, "sh")[:2])
(CONSOLE, *_) = (text for _, text in blocks(PAGE, "console"))


@contextmanager
def redis(folder: Path) -> Iterator[int]:
    """With the lines that the page adds to Debian's; the port is a free one."""
    (lines,) = re.findall(r"printf '(.*)' \| sudo tee -a /etc/redis/redis.conf", COMMANDS)
    file = folder / "redis.conf"
    file.write_text(lines.replace("\\n", "\n").replace(" 10.1.0.1", ""))
    port = free_port()
    words = [str(REDIS), str(file), "--port", str(port), "--save", "", "--dir", str(folder)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        yield port
    finally:
        process.kill()
        process.wait(60)


class Gpu1:
    """The first host, by the page. The test's superuser has the name that the role has there: it is `lab` here."""

    def __init__(self, folder: Path, postgres: Postgres, redis_port: int) -> None:
        statements = re.findall(r'psql -c "(.*)"$', COMMANDS, re.MULTILINE)
        with psycopg.connect(postgres.url, autocommit=True) as superuser:
            for statement in statements:
                superuser.execute(statement.replace("gpushare", "lab"))
        (rule,) = re.findall(r"echo '(host .*)' \| sudo tee -a /etc/postgresql/.*/pg_hba.conf", COMMANDS)
        postgres.let_in(rule.replace("gpushare", "lab").replace("10.1.0.0/24", "127.0.0.0/8"))
        self.database = urlsplit(postgres.url).netloc.partition("@")[2]
        environ = dict(line.split("=", 1) for line in SETTINGS.splitlines())
        environ["DATABASE_URL"] = (
            environ["DATABASE_URL"].replace("gpushare", "lab").replace("127.0.0.1:5432", self.database)
        )
        self.redis = environ["REDIS_URL"] = environ["REDIS_URL"].replace(":6379", f":{redis_port}")
        self.web = Production(folder / "gpu1", postgres, **environ)
        self.web.start_web()
        until(self._answers)

    def _answers(self) -> bool:
        try:
            return http.get(f"http://{self.web.address}/healthz").status_code == 200
        except httpx.TransportError:
            return False


def test_a_host_joins_and_works_by_what_the_page_says(tmp_path: Path) -> None:
    with running_postgres() as postgres, redis(tmp_path) as port:
        gpu1 = Gpu1(tmp_path, postgres, port)
        try:
            (setup,) = re.findall(
                r"^gpu1\$ sudo gpushare-manage (node setup) \| sudo -u postgres psql ", CONSOLE, re.MULTILINE
            )
            postgres.as_admin("lab", gpu1.web.manage(*setup.split()))
            said = gpu1.web.manage("node", "add", "gpu2").strip()
            (shown,) = re.findall(r"^(gpushare-node join .*)$", CONSOLE, re.MULTILINE)
            assert re.fullmatch(re.escape(shown).replace("…", r"\S+"), said), (said, shown)
            assert f"gpu2$ sudo {shown}" in CONSOLE
            file = tmp_path / "gpushare.env"
            file.write_text((ROOT / "packaging" / "deb" / "gpushare.env").read_text())
            words = said.replace("http://gpu1:8000", f"http://{gpu1.web.address}").split()[1:]
            command = [sys.executable, "-m", "appliance.joining", *words, "--file", str(file)]
            subprocess.run(command, cwd=ROOT, check=True)
            settings = envfile.read(file)
            assert urlsplit(settings["DATABASE_URL"]).netloc.endswith("@gpu1:5432")
            assert settings["REDIS_URL"] == "redis://:PASSWORD-2@gpu1:6379/0"
            it_works(settings, gpu1, tmp_path)
        finally:
            gpu1.web.close()


def it_works(settings: dict[str, str], gpu1: Gpu1, folder: Path) -> None:
    """What its unit starts, as the unit does; the name gpu1 leads nowhere here."""
    database = settings["DATABASE_URL"].replace("gpu1:5432", gpu1.database)
    settings = settings | {"DATABASE_URL": database, "REDIS_URL": gpu1.redis}
    environ = {**os.environ, **settings, "GPUSHARE_HOME": str(folder / "gpu2"), "GPUSHARE_GPUS": "sim:1x1GiB"}
    environ["GPUSHARE_ENGINE"] = "process"
    manage = [sys.executable, "manage.py"]
    before = subprocess.run(
        [*manage, "migrate", "-v0"], cwd=ROOT, env=environ, text=True, capture_output=True, check=False
    )
    assert "Traceback" not in before.stderr, before.stderr
    scheduler = subprocess.Popen([*manage, "runscheduler"], cwd=ROOT, env=environ)
    try:
        nodes = f"http://{gpu1.web.address}/api/v1/nodes/"
        token = {"Authorization": f"Token {gpu1.web.manage('shell', '-c', ADMIN).split()[-1]}"}
        until(lambda: [each["alive"] for each in http.get(nodes, headers=token).json()["results"]] == [True])
    finally:
        scheduler.terminate()
        assert scheduler.wait(PATIENCE) in (0, -15)


ADMIN = "from web.people.bootstrap import ensure_admin; print(ensure_admin())"


def test_each_setting_of_the_page_is_one() -> None:
    document = (ROOT / "docs" / "settings.md").read_text()
    names = [line.split("=", 1)[0] for line in SETTINGS.splitlines()]
    assert names
    assert [name for name in names if f"`{name}`" not in document] == []
