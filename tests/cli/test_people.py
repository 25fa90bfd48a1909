"""People, groups and allowances from the command line, against a real appliance."""

import json

import pytest

from tests.cli.support import gpushare


@pytest.fixture
def shell(appliance):
    """Runs one command line as the admin; `who` is another's login."""
    return lambda *words, who=None, **more: gpushare(*words, environ=who or appliance.environ, **more)


def test_an_account_from_its_making_to_its_end(appliance, shell):
    made = shell("people", "ada@lab.example", "--create", "--role", "operator")
    assert made.returncode == 0, made.stderr
    first, secret = made.stdout.splitlines()
    assert first == "ada@lab.example is created with the role operator"
    password = secret.split()[1]
    home = {"GPUSHARE_CONFIG": str(appliance.home / "ada")}
    signed_in = gpushare(
        "login",
        appliance.environ["GPUSHARE_URL"],
        "--user",
        "ada@lab.example",
        "--password-stdin",
        environ=home,
        stdin=f"{password}\n",
    )
    assert signed_in.returncode == 0, signed_in.stderr
    for words in (("people",), ("people", "admin", "--off"), ("groups",), ("allowances", "admin", "--containers", "0")):
        refused = shell(*words, who=home)
        assert (refused.returncode, refused.stderr) == (1, "gpushare: Only an admin may manage people\n"), words
    assert "ada@lab.example (operator" in shell("people", "ada@lab.example").stdout
    assert "operator" in next(line for line in shell("people").stdout.splitlines() if line.startswith("ada@"))
    assert "disabled" in shell("people", "ada@lab.example", "--off").stdout
    assert shell("whoami", who=home).returncode == 1
    assert shell("people", "admin", "--role", "user").stderr.startswith("gpushare: This would leave no admin")


def test_a_group_its_members_and_its_allowance(shell):
    assert shell("people", "bob", "--create", "--no-password").returncode == 0
    done = shell("groups", "vision 数学", "--create", "--add", "bob")
    assert "vision 数学" in done.stdout, done.stderr
    assert done.stdout.splitlines()[1].endswith("bob")
    given = shell(
        "allowances",
        "vision 数学",
        "--group",
        "--gpu-memory",
        "40GiB",
        "--images",
        "lab/*",
        "--compute-limit",
        "30%",
        "--json",
    )
    answer = json.loads(given.stdout)
    assert (answer["gpu_memory"], answer["images"], answer["compute_limit"]) == (40 * 2**30, ["lab/*"], 30)
    output = shell("people", "bob").stdout
    assert "40 GiB   From the group vision 数学." in output
    assert "40 GiB" in shell("allowances").stdout
    assert shell("allowances", "vision 数学", "--group", "--gpu-memory", "none").stdout.count("40 GiB") == 0
    (card,) = json.loads(shell("allowances", "vision 数学", "--group", "--gpus", "0", "--json").stdout)["gpus"]
    assert card.startswith("GPU-")
    assert card in shell("allowances", "vision 数学", "--group", "--gpus", card).stdout
    assert shell("allowances", "vision 数学", "--group", "--withdraw").returncode == 0
    assert "bob" not in shell("groups", "vision 数学", "--remove", "bob").stdout.splitlines()[1]
    assert shell("groups", "vision 数学", "--delete").stdout == "vision 数学: deleted\n"
    assert shell("groups", "vision 数学").returncode == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("people", "--role", "admin"), "a NAME is missing"),
        (("people", "nobody"), "There is no account of this name"),
        (("people", "a/b", "--create"), "gpushare: Enter a valid username"),
        (("groups", "--add", "bob"), "a GROUP is missing"),
        (("people", "x", "--no-password"), "--no-password goes with --create"),
        (("groups", "user", "--delete"), '"user" is a role'),
        (("allowances", "admin", "--containers", "many"), "--containers: many is not a number"),
        (("allowances", "admin", "--gpu-memory", "lots"), '--gpu-memory: "lots" is not a size'),
        (("allowances", "admin", "--gpus", "GPU-x"), "--gpus: There is no GPU GPU-x here"),
        (("people", "x", "--role", "god"), "god"),
    ],
)
def test_what_makes_no_sense_is_one_line(shell, words, expected):
    done = shell(*words)
    assert done.returncode in (1, 2)
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_application_is_shared_with_guests(appliance, shell):
    for name in ("dora", "emil"):
        assert shell("people", name, "--create", "--no-password").returncode == 0
    appliance.launch("/bin/sleep", "600", name="lab", app="8888")
    assert shell("guests", "lab").stdout == "no guests\n"
    assert shell("guests", "lab", "--add", "emil", "--add", "dora").stdout == "dora\nemil\n"
    refused = shell("guests", "lab", "--add", "nobody")
    assert (refused.returncode, "no active account" in refused.stderr) == (1, True)
    assert json.loads(shell("guests", "lab", "--remove", "dora", "--json").stdout) == {"guests": ["emil"]}
