"""`manage.py backup` while everything runs, and `restore` onto an empty host: nothing is missing, nothing believed."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest

from tests.support.appliance import ROOT, WORKLOAD, Appliance, until
from tests.support.postgres import BIN as POSTGRES
from tests.support.postgres import running_postgres
from tests.support.tables import begin_with_tables, with_tables

KEPT = {"secret-key", "audit-anchor", "admin-token"}


def manage(home: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GPUSHARE_", "DATABASE_"))}
    command = [sys.executable, "manage.py", *words]
    env = kept | {"GPUSHARE_HOME": str(home)} | environ
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def done(home: Path, *words: str, **environ: str) -> str:
    ended = manage(home, *words, **environ)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A host with a little in its database."""
    home = tmp_path_factory.mktemp("small") / "home"
    home.mkdir(mode=0o750)
    begin_with_tables(home / "database/gpushare.sqlite3")
    entry = 'from web import audit; audit.record("ada", "warned", "x", note="a word")'
    done(home, "shell", "-v0", "-c", f"from web.people.bootstrap import ensure_admin; ensure_admin(); {entry}")
    return home


@pytest.mark.timeout(900)  # a dozen processes start one after the other, on a machine that may be busy
def test_a_host_that_is_wiped_comes_back_with_everything(tmp_path: Path) -> None:
    home, target, secret = tmp_path / "home", tmp_path / "lab.backup", tmp_path / "passphrase"
    secret.write_text("correct horse battery staple\n")
    appliance = Appliance(home, GPUSHARE_PRICE="2")
    try:
        ended = f"containers/{appliance.launch(WORKLOAD, '--bytes', '64MiB', name='ended', gpu_memory='512MiB')['id']}/"
        until(lambda: appliance.api("GET", ended)["state"] == "exited")
        appliance.launch(WORKLOAD, "--bytes", "64MiB", "--hold", "3600", name="holds", gpu_memory="512MiB")
        until(lambda: appliance.named("holds")["gpus"][0]["used"] >= 64 << 20)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        asked = f"reports/allocations/?from=2020-01-01T00:00:00Z&to={now}&group_by=container"
        until(lambda: appliance.api("GET", asked)["rows"])
        noted = done(home, "verify_audit").split()[-1]
        for _ in range(10):  # history is written a moment after what it tells of: until none was written meanwhile
            target.unlink(missing_ok=True)
            before = appliance.api("GET", asked)
            done(home, "backup", str(target), "--passphrase-file", str(secret), GPUSHARE_PRICE="2")
            if appliance.api("GET", asked) == before:
                break
        assert target.stat().st_mode & 0o777 == 0o600
        assert b"gpushare" not in target.read_bytes()
        held = f"containers/{appliance.named('holds')['id']}/"
        appliance.api("POST", f"{held}kill/", {})
    finally:
        appliance.crash()
        appliance._log.close()
    token = appliance.token
    shutil.rmtree(home)

    wrong = tmp_path / "wrong"
    wrong.write_text("something else\n")
    refused = manage(home, "restore", str(target), "--passphrase-file", str(wrong))
    assert refused.returncode == 1
    assert "is this the passphrase?" in refused.stderr
    assert "--passphrase-file" in manage(home, "restore", str(target)).stderr
    output = done(home, "restore", str(target), "--passphrase-file", str(secret))
    assert "The audit log is whole" in output
    assert "GPUSHARE_PRICE=2\n" in (home / "restored-settings.env").read_text()
    done(home, "verify_audit", "--known", noted)

    appliance = Appliance(home, GPUSHARE_PRICE="2")
    try:
        assert appliance.token == token, "whoever had a token still has it"
        assert appliance.api("GET", asked) == before
        until(lambda: appliance.api("GET", held)["finished_at"])
        assert appliance.api("GET", held)["reason"], "what ran then and is gone is recorded as ended"
        assert appliance.api("GET", ended)["state"] == "exited"
        until(lambda: appliance.api("GET", "nodes/")["results"][0]["alive"])
    finally:
        appliance.close()
    done(home, "verify_audit")


@pytest.mark.production
@pytest.mark.skipif(POSTGRES is None or not shutil.which("pg_dump"), reason="needs the distribution's PostgreSQL")
def test_postgresql_is_backed_up_and_restored(small: Path, tmp_path: Path) -> None:
    target = tmp_path / "p.backup"
    with running_postgres(like=with_tables()) as postgres:
        key = {"GPUSHARE_SECRET_KEY": "one key for both hosts"}
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute("CREATE DATABASE other")
        other = postgres.url.rpartition("/")[0] + "/other"
        one, two = tmp_path / "one", tmp_path / "two"
        empty = manage(one, "backup", str(target), DATABASE_URL=other)
        assert "the database is empty" in empty.stderr
        code = 'from web import audit; audit.record("ada", "warned", "x", note="a word")'
        done(one, "shell", "-v0", "-c", code, DATABASE_URL=postgres.url, **key)
        done(one, "backup", str(target), DATABASE_URL=postgres.url, **key)
        output = done(two, "restore", str(target), DATABASE_URL=other, **key)
        assert "1 seals hold" in output
        assert "leads to sqlite" in manage(tmp_path / "three", "restore", str(target)).stderr
        forgot = manage(two, "restore", str(target), DATABASE_URL=other)
        assert "not empty" in forgot.stderr


def test_a_backup_has_what_cannot_be_made_again(small: Path, tmp_path: Path) -> None:
    target = tmp_path / "whole.backup"
    done(small, "backup", str(target), GPUSHARE_LDAP_BIND_PASSWORD="it's secret")
    with tarfile.open(target) as archive:
        names = set(archive.getnames())
        settings = archive.extractfile("settings.env").read().decode()
        about = json.load(archive.extractfile("about.json"))
    assert names == {"about.json", "settings.env", "database.sqlite3", "secret-key", "admin-token"}
    assert names <= {"about.json", "settings.env", "database.sqlite3"} | KEPT
    assert """GPUSHARE_LDAP_BIND_PASSWORD='it'"'"'s secret'""" in settings
    assert "0001_initial" in about["migrations"]


def test_only_the_newest_are_kept(small: Path, tmp_path: Path) -> None:
    others = [tmp_path / f"gpushare-2020010{day}-000000.backup" for day in range(1, 5)]
    for path in (*others, tmp_path / "mine.backup"):
        path.touch()
    done(small, "backup", str(tmp_path), "--keep", "2")
    left = sorted(path.name for path in tmp_path.iterdir())
    assert len(left) == 3
    assert others[-1].name in left
    assert "mine.backup" in left
    assert manage(small, "backup", str(tmp_path), "--keep", "0").returncode == 1
    nowhere = manage(small, "backup", str(tmp_path / "nowhere"), "--keep", "2")
    assert (nowhere.returncode, (tmp_path / "nowhere").exists()) == (1, False)
    assert "nowhere is not one" in nowhere.stderr


def _unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """By hand: Debian 12's Python has no `extractall(filter=…)`, and later ones warn of one without."""
    folder.mkdir()
    for each in archive:
        content = archive.extractfile(each)
        assert content is not None, f"{each.name} is no file"
        (folder / each.name).write_bytes(content.read())


def test_what_cannot_be_restored_is_reported_and_nothing_is_changed(small: Path, tmp_path: Path) -> None:
    target = tmp_path / "whole.backup"
    done(small, "backup", str(target))
    assert "not empty" in manage(small, "restore", str(target)).stderr
    with TemporaryDirectory() as home:
        cut = tmp_path / "cut.backup"
        cut.write_bytes(target.read_bytes()[:5000])
        assert "is truncated" in manage(Path(home), "restore", str(cut)).stderr
        (tmp_path / "text").write_text("hello")
        assert "not a backup of gpushare" in manage(Path(home), "restore", str(tmp_path / "text")).stderr
        newer = tmp_path / "newer.backup"
        with tarfile.open(target) as archive, tarfile.open(newer, "w") as other:
            _unpack(archive, tmp_path / "content")
            about = json.loads((tmp_path / "content/about.json").read_text())
            about["migrations"].append("0999_from_the_future")
            (tmp_path / "content/about.json").write_text(json.dumps(about))
            for path in sorted((tmp_path / "content").iterdir()):
                other.add(path, path.name)
        output = manage(Path(home), "restore", str(newer)).stderr
        assert "of a newer release" in output
        assert "0999_from_the_future" in output
        for broken in ("{", "[]", '{"version": "0.1.0", "database": "sqlite"}'):
            (tmp_path / "content/about.json").write_text(broken)
            with tarfile.open(newer, "w") as other:
                for path in sorted((tmp_path / "content").iterdir()):
                    other.add(path, path.name)
            assert "about.json cannot be read" in manage(Path(home), "restore", str(newer)).stderr
        done(Path(home), "restore", str(target))


def test_a_log_that_was_tampered_with_is_reported_when_it_is_restored(small: Path, tmp_path: Path) -> None:
    target, forged, content = tmp_path / "whole.backup", tmp_path / "forged.backup", tmp_path / "content"
    done(small, "backup", str(target))
    with tarfile.open(target) as archive, tarfile.open(forged, "w") as other:
        _unpack(archive, content)
        database = content / "database.sqlite3"
        with closing(sqlite3.connect(database)) as writer:
            writer.execute("UPDATE web_auditentry SET actor = 'eve'")
            writer.commit()
        for path in sorted(content.iterdir()):
            other.add(path, path.name)
    with TemporaryDirectory() as home:
        result = manage(Path(home), "restore", str(forged))
        assert result.returncode == 1
        assert "failed a check" in result.stderr


def test_what_a_killed_backup_left_goes_with_the_next_and_nothing_of_one_that_is_made(
    small: Path, tmp_path: Path
) -> None:
    secret, folder = tmp_path / "passphrase", tmp_path / "backups"
    secret.write_text("correct horse\n")
    folder.mkdir()
    slow = tmp_path / "bin" / "gpg"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GPUSHARE_", "DATABASE_"))}
    environ = kept | {"GPUSHARE_HOME": str(small), "PATH": f"{slow.parent}:{os.environ['PATH']}"}
    command = [sys.executable, "manage.py", "backup", str(folder / "one"), "--passphrase-file", str(secret)]
    making = subprocess.Popen(command, cwd=ROOT, env=environ, start_new_session=True)
    try:
        (left,) = until(lambda: [path for path in folder.glob(".backup-*") if (path / "whole").exists()])
        done(small, "backup", str(folder / "two"))
        assert (left / "content" / "database.sqlite3").exists()
    finally:
        os.killpg(making.pid, signal.SIGKILL)
        making.wait()
    assert left.exists()
    (others := folder / ".backup-just-begun").mkdir()
    done(small, "backup", str(folder / "three"))
    assert {path.name for path in folder.iterdir()} == {"two", "three", others.name}


def test_what_a_killed_restore_left_goes_with_the_next(small: Path, tmp_path: Path) -> None:
    done(small, "backup", str(tmp_path / "whole.backup"))
    home = tmp_path / "home"
    (left := home / ".restore-killed").mkdir(parents=True)
    (left / "database.sqlite3").touch()
    done(home, "restore", str(tmp_path / "whole.backup"))
    assert not left.exists()
