"""The commands that ask one question, against a real appliance."""

import json

import pytest

import appliance as product
from tests.cli.support import gpushare
from tests.support.appliance import WORKLOAD, until
from tests.support.eventually import PATIENCE


@pytest.fixture
def shell(appliance):
    """Runs one command line, logged in."""
    return lambda *words, **more: gpushare(*words, environ=appliance.environ, **more)


def test_the_version():
    assert gpushare("--version").stdout == f"gpushare {product.VERSION}\n"


def test_whoami_tells_the_allowance_and_what_of_it_is_in_use(appliance, shell):
    appliance.launch("sleep", "600", gpu_memory="256MiB")
    who, _, memory, containers, _ = shell("whoami").stdout.splitlines()
    assert who.startswith("admin (admin) on http://")
    assert memory.split() == ["GPU", "memory", "256", "MiB", "-"]
    assert containers.split() == ["containers", "1", "-"]
    assert json.loads(shell("whoami", "--json").stdout)["username"] == "admin"


def test_the_policy_is_shown_and_set(shell):
    for name in ("fair", "fifo"):  # the latter is how this appliance began
        done = shell("policy", name)
        assert (done.returncode, name in done.stdout) == (0, True)
        until(lambda: f"*  {name} " in shell("policy").stdout)  # noqa: B023 - called in this round
    assert shell("policy", "nonsense").returncode == 1


def test_a_forecast_launches_nothing(appliance, shell):
    assert "Fits" in shell("forecast", "--gpu-memory", "1GiB").stdout
    assert shell("forecast", "--gpu-memory", "64MiB", "--gpus", "9").returncode == 1
    assert appliance.containers() == []
    appliance.launch("sleep", "600", gpu_memory="900MiB", guaranteed=True)
    lacks = shell("forecast", "--gpu-memory", "1GiB")
    assert "GPU 0 lacks " in lacks.stdout
    assert lacks.returncode == 1


def test_a_forecast_names_who_waits_already(appliance, shell):
    appliance.launch("sleep", "600", name="holds", gpu_memory="900MiB", guaranteed=True)
    appliance.launch(WORKLOAD, "--bytes", "500MiB", "--hold", "60", name="waits", gpu_memory="800MiB")
    until(lambda: appliance.named("waits")["state"] == "suspended")
    assert "; waits waits already; " in shell("forecast", "--gpu-memory", "1GiB").stdout


def test_a_forecast_with_a_time_limit_is_not_concerned_by_what_comes_after_it(appliance, shell):
    made = shell("notice", "New fans", "--from", "2099-01-01T10:00", "--to", "2099-01-01T12:00")
    assert made.returncode == 0, made.stderr
    asked = "forecast", "--gpu-memory", "64MiB"
    assert "New fans" in shell(*asked).stdout
    within = shell(*asked, "--ttl", "1h30m")
    assert (within.returncode, "New fans" in within.stdout) == (0, False)
    assert "is not a duration" in shell(*asked, "--ttl", "soon").stderr
    assert shell("notice", "--withdraw", made.stdout.partition(":")[0]).returncode == 0  # others share this appliance


def test_four_bytes_were_meant_to_be_gibibytes(appliance, shell):
    """Wherever a quota is said."""
    appliance.launch("sleep", "600", name="it", gpu_memory="256MiB")
    for words in (("run", "--gpu-memory", "4", "local", "true"), ("set", "it", "--gpu-memory", "4"),
                  ("forecast", "--gpu-memory", "4")):  # fmt: skip
        done = shell(*words)
        assert done.returncode in (1, 125)
        text = 'This has to be at least 1 MiB. 4 without a unit is 4 bytes: did you mean "4GiB"?'
        assert done.stderr == f"gpushare: --gpu-memory: {text}\n"


def test_wait_prints_the_exit_codes_and_exits_with_the_last(appliance, shell, start):
    for name, code in (("three", "3"), ("none", "0")):
        appliance.launch("sh", "-c", f"exit {code}", name=name)
    done = shell("wait", "none", "three")
    assert (done.stdout, done.returncode) == ("0\n3\n", 3)
    made = appliance.launch("sleep", "600", name="long")
    waiting = start("wait", "long", environ=appliance.environ)
    until(lambda: appliance.api("GET", f"containers/{made['id']}/")["state"] == "running")
    shell("kill", "long")
    assert waiting.communicate(timeout=PATIENCE)[0] == "137\n"
    assert waiting.returncode == 137


def test_ps_filters(appliance, shell):
    appliance.launch("sleep", "600", name="one")
    shell("run", "--name", "two", "local", "sh", "-c", "exit 3")
    assert names(shell("ps", "-f", "name=one")) == ["one"]
    assert names(shell("ps", "-f", "owner=nobody")) == []
    assert "two" in names(shell("ps", "-f", "state=failed"))
    assert names(shell("ps", "-f", "state=failed", "-f", "name=one")) == []
    for wrong in ("nonsense=1", "name", "state=nonsense"):
        done = shell("ps", "--filter", wrong)
        assert done.returncode != 0, wrong
        assert done.stderr.count("\n") == 1
    assert '--filter: "nonsense" is none of created, running, ' in done.stderr
    assert names(shell("ps", "-f", "gpu=0")) == ["one"]
    assert shell("ps", "-f", "gpu=7").stderr == "gpushare: no GPU 7: gpushare gpus lists them\n"


def names(done):
    return [row.split()[1] for row in done.stdout.splitlines()[1:]]


def test_a_password_from_a_pipe(appliance, tmp_path):
    config = {"GPUSHARE_CONFIG": str(tmp_path)}
    words = ("login", appliance.url, "--user", "admin", "--password-stdin")
    password = appliance.environ["GPUSHARE_TOKEN"]
    assert "as admin" in gpushare(*words, environ=config, stdin=password + "\n").stdout
    refused = gpushare(*words, environ=config, stdin="wrong\n")
    assert (refused.returncode, refused.stderr) == (1, "gpushare: The user name or the password is wrong\n")
    alone = gpushare("login", appliance.url, "--password-stdin", environ=config, stdin="x\n")
    assert "--password-stdin needs --user" in alone.stderr
