"""`gpushare run` of PyTorch in a Docker container on a real card: suspended and resumed, as a person sees it."""

import os
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.gpu.conftest import HERE, ROOT, VOLUMES, Appliance
from tests.gpu.host_image import IMAGE, PYTHON

pytestmark = [pytest.mark.gpu, pytest.mark.docker, pytest.mark.timeout(300)]
ENTRY = [sys.executable, "-c", "from appliance.cli import main; main()"]
FOLDERS = [word for volume in VOLUMES for word in ("-v", volume)]


def test_a_pytorch_job_is_suspended_and_resumes_in_the_terminal(
    appliance: Appliance, record: Callable[[str], None]
) -> None:
    token = (appliance.home / "admin-token").read_text().strip()
    logged_in = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
        "GPUSHARE_URL": str(appliance.client.base_url),
        "GPUSHARE_TOKEN": token,
    }

    def gpushare(*words: str) -> tuple[int, str]:
        """Its exit code, and what a terminal would show."""
        done = subprocess.run(
            [*ENTRY, *words], env=logged_in, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=200
        )
        shown = " ".join(words).replace(" ".join(FOLDERS), "-v …").replace(str(HERE), "/jobs")
        record(f"$ gpushare {shown}\n{done.stdout}".rstrip())
        return done.returncode, done.stdout

    def job(name: str, seconds: int, *options: str) -> tuple[int, str]:
        quota = ("--gpu-memory", "4GiB", "--name", name)
        return gpushare("run", *options, *quota, *FOLDERS, IMAGE, PYTHON, "/jobs/job_turn.py", "3", str(seconds))

    code, shown = job("trainer", 15, "-d")
    assert code == 0, shown
    first = appliance.client.get("/api/v1/containers/?name=trainer").json()["results"][0]["id"]
    appliance.until(lambda: "block 11" in appliance.logs(first), "the first to hold its memory", 120)
    code, shown = job("second", 1)
    record(f"$ echo $?\n{code}")
    assert code == 0, shown
    assert "result right" in shown
    assert re.search(r"^gpushare: second is suspended since .*, 1st in the queue\. Needs ", shown, re.MULTILINE)
    assert re.search(r"^gpushare: second goes on after \d+ s$", shown, re.MULTILINE)
    assert gpushare("ps", "-a")[0] == 0
    assert gpushare("peak")[0] == 0
    assert gpushare("gpus")[0] == 0
