"""gpushare.env beside manage.py: commands that are run by hand have the settings of the services."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from appliance import envfile
from tests.support.appliance import ROOT


def test_it_is_read_as_systemd_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "gpushare.env"
    lines = ("# a comment=1", "; another=1", "", "PORT=8001", "GPUSHARE_ALLOWED_HOSTS=127.0.0.1 gpu1.lab",
             'GPUSHARE_NODE="a b"', "K='c=d'", "E=")  # fmt: skip
    file.write_text("\n".join(lines) + "\n")
    assert envfile.read(file) == {
        "PORT": "8001",
        "GPUSHARE_ALLOWED_HOSTS": "127.0.0.1 gpu1.lab",
        "GPUSHARE_NODE": "a b",
        "K": "c=d",
        "E": "",
    }
    assert envfile.read(tmp_path / "nothing") == {}


def test_manage_takes_it_and_the_environment_goes_before_it(tmp_path: Path) -> None:
    for name in ("manage.py", "appliance", "scheduler", "web", "requirements", "static", "templates"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "manage.py").unlink()
    shutil.copy(ROOT / "manage.py", tmp_path)
    (tmp_path / "appliance").unlink()
    shutil.copytree(ROOT / "appliance", tmp_path / "appliance", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "gpushare.env").write_text(f"GPUSHARE_HOME={tmp_path}/home\nGPUSHARE_NODE=of-the-file\nPORT=8123\n")
    code = "from django.conf import settings; print(settings.GPUSHARE_NODE, settings.PORT)"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GPUSHARE_")}
    kept |= {"PORT": "8456", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "manage.py", "shell", "-v0", "-c", code]
    result = subprocess.run(command, cwd=tmp_path, env=kept, capture_output=True, text=True, check=True)
    assert result.stdout == "of-the-file 8456\n"
    assert (tmp_path / "home").is_dir()
