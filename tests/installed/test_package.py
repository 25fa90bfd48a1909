"""What `make deb` writes, without installing it. Its life on a Debian: test_life.py (`make deb-test`)."""

import fcntl
import gzip
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from appliance import VERSION
from appliance.cli.main import app
from tests.support.appliance import ROOT

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),  # the first time it downloads the libraries of four Pythons
    pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb"),
]
SHELL = ("build", "outside", "gpushare-manage", "gpushare-node", "postinst", "prerm", "postrm")
REGISTRIES = re.compile(rb"pythonhosted|pypi\.org/simple|registry\.npmjs|deb\.debian\.org|/debian/pool/")
PROGRAMS = {"gpushare-sftp", "guardian", "workload", "manage.py"}
OLDEST_GLIBC = (2, 17)  # of the images that containers run
HOSTS_GLIBC = (2, 36)  # Debian 12's; Ubuntu 24.04 has 2.39
PYTHONS = ("3.11", "3.12", "3.13", "3.14")  # Debian 12's, Ubuntu 24.04's, Debian 13's, and the next


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the package holds in `files`, and about it in `control`."""
    with (ROOT / ".build" / "deb.lock").open("w") as lock:  # each worker of a run comes here
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = subprocess.run(["make", "-s", "deb"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr[-2000:]
    (file,) = (ROOT / ".build" / "packages").glob(f"gpushare_{VERSION}_*.deb")
    folder = tmp_path_factory.mktemp("package")
    subprocess.run(["dpkg-deb", "-x", str(file), str(folder / "files")], check=True)
    subprocess.run(["dpkg-deb", "-e", str(file), str(folder / "control")], check=True)
    listed = subprocess.run(["dpkg-deb", "-c", str(file)], check=True, capture_output=True, text=True).stdout
    (folder / "list").write_text(listed)
    return folder


def ours(package: Path) -> list[Path]:
    libraries = package / "files/opt/gpushare/.venv/libraries"
    return [path for path in (package / "files").rglob("*") if path.is_file() and not path.is_relative_to(libraries)]


def test_everything_is_roots_and_nobody_else_may_write_there(package: Path) -> None:
    for line in (package / "list").read_text().splitlines():
        mode, owner = line.split()[:2]
        assert owner == "root/root", line
        assert mode[0] == "l" or (mode[5], mode[8]) == ("-", "-"), line
        assert not re.search("[sStT]", mode[1:]), line
    for path in ours(package):
        program = path.parent.name in ("bin", "sbin") or path.name in PROGRAMS
        assert not program or path.is_symlink() or path.stat().st_mode & stat.S_IXUSR, path
    assert (package / "files/etc/gpushare/gpushare.env").stat().st_mode & 0o777 == 0o600


def test_the_examples_are_where_their_line_for_cron_looks_and_can_be_started(package: Path) -> None:
    folder = package / "files/usr/share/doc/gpushare/examples"
    assert {path.name for path in folder.iterdir()} == {"batch", "follow.py", "weekly-report", "weekly-report.cron"}
    (program,) = re.findall(r"(?m)^0 7 \S+ \S+ \S+ +root +(\S+)", (folder / "weekly-report.cron").read_text())
    for path in (package / f"files{program}", folder / "batch", folder / "follow.py"):
        assert path.stat().st_mode & stat.S_IXUSR, path


def test_the_settings_alone_are_kept_at_upgrades(package: Path) -> None:
    assert (package / "control/conffiles").read_text().split() == ["/etc/gpushare/gpushare.env"]


def test_nothing_of_ours_names_a_registry_and_no_text_this_machine(package: Path) -> None:
    for path in ours(package):
        content = path.read_bytes()
        assert not REGISTRIES.search(content), path
        # What is compiled has the path in its debugging symbols.
        assert content[:4] == b"\x7fELF" or str(ROOT).encode() not in content, path


def test_links_lead_somewhere(package: Path) -> None:
    """In the package; or to the host's Python, to what is made later, and to python-ldap, which is only suggested."""
    root = package / "files"
    for path in root.rglob("*"):
        if path.is_symlink():
            target = os.readlink(path)
            inside = root / target.lstrip("/") if target.startswith("/") else path.parent / target
            elsewhere = ("/usr/bin/python3", "/var/lib/gpushare", "/usr/lib/python3/dist-packages/")
            assert inside.exists() or target.startswith(elsewhere), f"{path} → {target}"


def newest_glibc(path: Path) -> tuple[int, ...]:
    done = subprocess.run(["objdump", "-T", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "not a dynamic object" in done.stderr, done.stderr  # it has all within it
    versions = [tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([\d.]+)", done.stdout)]
    return max(versions, default=(0,))


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")
def test_what_is_compiled_runs_with_the_glibc_of_hosts_and_images(package: Path) -> None:
    files = package / "files/opt/gpushare"
    compiled = [
        path for path in (files / ".build").rglob("*") if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"
    ]
    assert {path.name for path in compiled} >= {"libgpushare.so", "_gpushare.so", *PROGRAMS - {"manage.py"}}
    for path in compiled:
        assert newest_glibc(path) <= OLDEST_GLIBC, path
    libraries = [path for path in (files / ".venv/libraries").rglob("*.so*") if not path.is_symlink()]
    assert len(libraries) > 20
    for path in libraries:
        assert newest_glibc(path) <= HOSTS_GLIBC, path


def test_what_is_compiled_is_there_for_each_python(package: Path) -> None:
    """Only the distribution's own python-ldap is elsewhere."""
    libraries = package / "files/opt/gpushare/.venv/libraries"
    wanted = {f"cpython-{version.replace('.', '')}" for version in PYTHONS}
    found: dict[Path, set[str]] = {}
    for path in libraries.rglob("*.cpython-*.so"):
        name, python = path.name.split(".")[:2]
        found.setdefault(path.parent.relative_to(libraries) / name, set()).add("-".join(python.split("-")[:2]))
    assert len(found) > 5
    assert {name: has for name, has in found.items() if has != wanted} == {}


@pytest.mark.parametrize("version", PYTHONS)
def test_it_runs_with_each_python_that_it_says(package: Path, version: str, tmp_path: Path) -> None:
    python = sys.executable if version == f"3.{sys.version_info.minor}" else _python(version)
    files = package / "files/opt/gpushare"
    libraries = files / f".venv/lib/python{version}/site-packages"
    assert libraries.is_dir()
    if python is None:
        pytest.skip(f"needs Python {version}")
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(libraries), "GPUSHARE_HOME": str(tmp_path)}
    environ |= {"PYTHONDONTWRITEBYTECODE": "1", "GPUSHARE_GPUS": "sim:1x1GiB"}
    loads = "import shim.binding, psycopg, yaml, msgpack, scheduler.worker; print(psycopg.pq.__impl__)"
    for words in (["manage.py", "migrate", "-v0"], ["manage.py", "check"], ["manage.py", "shell", "-v0", "-c", loads]):
        done = subprocess.run(
            [python, "-S", *words], cwd=files, env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "binary\n"


def _python(version: str) -> str | None:
    for found in (shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python3")):
        if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            return str(found)
    return None


def test_the_man_page_tells_every_command_and_option(package: Path) -> None:
    page = gzip.decompress((package / "files/usr/share/man/man1/gpushare.1.gz").read_bytes()).decode()
    words = page.replace("\\-", "-")
    group = typer.main.get_command(app)
    for name, command in group.commands.items():
        assert f".SS gpushare {name}".replace("gpushare ", "gpushare \\&") in words.replace(
            "gpushare \\&", "gpushare \\&"
        )
        for option in command.params:
            for opt in option.opts if option.param_type_name == "option" and not option.hidden else ():
                assert opt in words, f"{name} {opt}"


def test_tab_completes_in_bash(package: Path, tmp_path: Path) -> None:
    (tmp_path / "gpushare").write_text(
        f'#!{sys.executable}\nimport sys\nsys.path.insert(0, "{ROOT}")\nfrom appliance.cli import main\nmain()\n'
    )
    (tmp_path / "gpushare").chmod(0o755)
    script = package / "files/usr/share/bash-completion/completions/gpushare"
    typed = "COMP_WORDS=(gpushare que); COMP_CWORD=1; _gpushare_completion gpushare; echo ${COMPREPLY[@]}"
    environ = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", f"source {script}; {typed}"], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout == "queue\n"


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
def test_shellcheck_finds_nothing_in_our_scripts() -> None:
    scripts = [str(ROOT / "packaging/deb" / name) for name in SHELL]
    done = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_another_file_for_another_python_is_refused(tmp_path: Path) -> None:
    for number, text in (("3.11", "one"), ("3.12", "two")):
        (tmp_path / number / "lib").mkdir(parents=True)
        (tmp_path / number / "lib" / "x.py").write_text(text)
    merge = [sys.executable, str(ROOT / "packaging/deb/merge.py"), str(tmp_path / "all")]
    done = subprocess.run(
        [*merge, str(tmp_path / "3.11"), str(tmp_path / "3.12")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "lib/x.py is another in 3.12: it cannot serve all Pythons.\n"
