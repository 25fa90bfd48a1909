"""Settings from the environment: every one is documented, and one that makes no sense is a sentence."""

import ast
import json
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path

import pytest
from channels_redis.core import RedisChannelLayer
from django.core.exceptions import ImproperlyConfigured

from appliance import environment
from appliance.budgets import NAMES, Budgets
from tests.support.tables import begin_with_tables

ROOT = Path(__file__).resolve().parent.parent


def test_every_setting_is_documented():
    documented = set(re.findall(r"`([A-Z_]+)`", (ROOT / "docs/settings.md").read_text()))
    source = (ROOT / "appliance/settings.py").read_text()
    used = set(re.findall(r'"(GPUSHARE_[A-Z_]+|HOST|PORT|DATABASE_URL|REDIS_URL|DEMO_EXIT)"', source))
    budgets = {f"GPUSHARE_BUDGET_{each.name.upper()}" for each in fields(Budgets)}
    levels = {"DOCKER_HOST", "INFO", "DEBUG", "WARNING", "ERROR", "CRITICAL"}
    assert documented - levels == used | budgets | {"DATABASE_URL"}


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("PORT", "eighty", "PORT is 'eighty', which is not a whole number"),
        ("GPUSHARE_APPS", "apps.example", "It is a star and a domain"),
        ("GPUSHARE_APPS", "*.lab-apps.example", "GPUSHARE_APPS needs GPUSHARE_TLS=1 and GPUSHARE_PUBLIC_URL"),
        ("GPUSHARE_SSH_CA", "ssh-ed25519 bm90aGluZw==", "GPUSHARE_SSH_CA has 'ssh-ed25519 bm90aGluZw=='"),
        ("PORT", "70000", "PORT is '70000', which is not a whole number of 0 to 65535."),
        ("GPUSHARE_GPUS", "two", "GPUSHARE_GPUS=two is none of: auto, nvidia"),
        ("GPUSHARE_GPUS", "nvidia", "NVML"),
        ("GPUSHARE_GPUS", "sim:2x5XiB", '"5XiB" is not a size'),
        ("GPUSHARE_GPUS", "sim:0x5GiB", "there can be no sim:0x5368709120"),
        (
            "GPUSHARE_ENGINE",
            "podman",
            "GPUSHARE_ENGINE is 'podman'. It may be auto, docker, process, swarm or kubernetes.",
        ),
        ("GPUSHARE_POLICY", "best", "GPUSHARE_POLICY is 'best'. It may be fair, "),
        ("GPUSHARE_DEFAULT_ROLE", "root", "It may be user, viewer, operator or admin."),
        ("GPUSHARE_IDLE_ACTION", "kill", "It may be mark, notify or pause."),
        ("GPUSHARE_BYPASS_ACTION", "pause", "It may be show or kill."),
        ("GPUSHARE_GPU_ACCESS", "all", "It may be auto, runtime, cdi or raw."),
        ("GPUSHARE_PORTS", "30000-20000", "It is a range of ports"),
        ("GPUSHARE_LOG_BYTES", "much", '"much" is not a size'),
        ("GPUSHARE_IDLE_MINUTES", "nan", "not a number of at least 0"),
        ("GPUSHARE_BUDGET_CONSOLES", "0", "not a whole number of at least 1"),
        ("GPUSHARE_PUBLIC_URL", "gpu1.lab", "It is an address such as https://gpu1.lab.example."),
        ("GPUSHARE_LOG", "loud", "GPUSHARE_LOG is 'loud'. It may be INFO, "),
        ("GPUSHARE_TLS", "yes", "GPUSHARE_TLS is 'yes'. It may be 0 or 1."),
        ("GPUSHARE_TEMPERATURE", "-1", "not a number of at least 0"),
    ],
)
def test_a_setting_that_makes_no_sense_is_a_sentence(name: str, value: str, sentence: str, tmp_path: Path) -> None:
    begin_with_tables(tmp_path / "database/gpushare.sqlite3")
    ended = subprocess.run(
        [sys.executable, "manage.py", "up"],
        cwd=ROOT,
        env={**os.environ, "GPUSHARE_HOME": str(tmp_path), "PORT": "0", "GPUSHARE_ENGINE": "process", name: value},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert sentence in ended.stderr
    assert "Traceback" not in ended.stderr


# What a setting becomes under a name of its own; all others are settings of their name.
ELSEWHERE = {
    "GPUSHARE_LOG": "LOGGING['root']['level']",
    "GPUSHARE_ALLOWED_HOSTS": "' '.join(settings.ALLOWED_HOSTS)",
    "GPUSHARE_APPS_LISTEN": "settings.GPUSHARE_APPS_LISTEN[1]",
    "GPUSHARE_PORTS": "'%s-%s' % settings.GPUSHARE_PORTS",
    "GPUSHARE_MAIL_HOST": "EMAIL_HOST",
    "GPUSHARE_MAIL_PORT": "EMAIL_PORT",
    "GPUSHARE_MAIL_USER": "EMAIL_HOST_USER",
    "GPUSHARE_MAIL_PASSWORD": "EMAIL_HOST_PASSWORD",
    "GPUSHARE_MAIL_TLS": "'starttls' if settings.EMAIL_USE_TLS else 'tls' if settings.EMAIL_USE_SSL else 'none'",
    "GPUSHARE_LOG_BYTES": "format_size(settings.GPUSHARE_LOG_BYTES).replace(' ', '')",
}
IN_WORDS = {"GPUSHARE_HOME", "GPUSHARE_NODE", "GPUSHARE_DOCKER_HOST", "GPUSHARE_WEB_USER", "GPUSHARE_SECRET_KEY",
            "GPUSHARE_OLD_SECRET_KEYS", "DATABASE_URL", "REDIS_URL", "GPUSHARE_MAIL_FROM"}  # fmt: skip


def documented() -> dict[str, str]:
    """Each setting's default, as the tables of docs/settings.md have it."""
    found = {}
    for variables, default in re.findall(
        r"^\| (`[A-Z_`, ]+) \| (.*?) \|", (ROOT / "docs/settings.md").read_text(), re.MULTILINE
    ):
        names, defaults = re.findall(r"`(\w+)`", variables), default.split(", ")
        found.update(zip(names, defaults if len(defaults) == len(names) else [default] * len(names), strict=True))
    return found


def values_of(names: set[str], home: Path, **environ: str) -> dict[str, str]:
    """What these settings are, as text, where the environment holds no other."""
    budgets = {name: f"settings.GPUSHARE_BUDGETS.{NAMES[name]}" for name in names if name in NAMES}
    shown = {name: ELSEWHERE.get(name, name) for name in names} | budgets
    reads = {name: what if "settings." in what else f"settings.{what}" for name, what in shown.items()}
    items = ", ".join(f"{name!r}: str({what})" for name, what in reads.items())
    script = (
        "import json, django; from django.conf import settings; from web.sizes import format_size; "
        f"print(json.dumps({{{items}}}))"
    )
    bare = {name: value for name, value in os.environ.items() if not name.startswith("GPUSHARE_") and name not in names}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**bare, "DJANGO_SETTINGS_MODULE": "appliance.settings", "GPUSHARE_HOME": str(home), **environ},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_default_is_the_documented_one_and_an_empty_variable_is_as_good_as_none(tmp_path):
    defaults = {name: default for name, default in documented().items() if name not in IN_WORDS}
    values = {name: value.removesuffix(".0") for name, value in values_of(set(defaults), tmp_path).items()}
    literal = {name: it.strip("`") for name, it in defaults.items() if it[:1] == "`" and it[1:-1] not in values}
    assert {name: values[name] for name in literal} == literal
    assert {values[name] for name in defaults if name not in literal} <= {"", "[]", "{}", "None", "False"}
    empty = values_of(set(defaults), tmp_path, **dict.fromkeys(defaults, ""))
    assert {name: value.removesuffix(".0") for name, value in empty.items()} == values


def test_what_is_secret_is_its_owners(tmp_path: Path) -> None:
    """Other people have accounts on a lab's host, too."""
    environment = {**os.environ, "GPUSHARE_HOME": str(tmp_path)}
    environment.pop("DATABASE_URL", None)
    subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, env=environment, check=True)
    modes = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes == {"database": 0o700, "database/gpushare.sqlite3": 0o600, "secret-key": 0o600}


def test_redis_answers_a_listener_before_its_client_gives_up():
    """At the same moment, the listener failed every 5 s, and hints that came just then were up to a second late."""
    layer = "from django.conf import settings; print(settings.CHANNEL_LAYERS['default']['CONFIG']['hosts'][0])"
    environ = {**os.environ, "REDIS_URL": "redis://127.0.0.1:1", "DJANGO_SETTINGS_MODULE": "appliance.settings"}
    result = subprocess.run([sys.executable, "-c", layer], cwd=ROOT, env=environ, capture_output=True, check=True)
    assert ast.literal_eval(result.stdout.decode())["socket_timeout"] > RedisChannelLayer.brpop_timeout


def test_a_home_that_others_could_read_is_closed_to_them_and_stays_open_to_the_group(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o2755)
    check = [sys.executable, "manage.py", "diffsettings"]
    subprocess.run(check, cwd=ROOT, env={**os.environ, "GPUSHARE_HOME": str(home)}, check=True, capture_output=True)
    assert home.stat().st_mode & 0o7777 == 0o2750


@pytest.mark.parametrize(
    ("domain", "page", "accepted", "said"),
    [
        ("lab-apps.example", "https://gpu1.lab.example", False, ""),
        ("lab-apps.example:8443", "https://10.0.0.1:8443", False, ""),
        ("apps.lab.example", "https://gpu1.lab.example", False, "the same site"),
        ("apps.lab.example", "https://gpu1.lab.example", True, ""),
        ("lab.example", "https://gpu1.lab.example", True, "one of these names"),
        ("apps.example", "https://APPS.example:8443", True, "one of these names"),
    ],
)
def test_applications_and_the_dashboard_are_two_sites(domain: str, page: str, accepted: bool, said: str):
    refused = pytest.raises(ImproperlyConfigured, match=said) if said else nullcontext()
    with refused:
        environment.require_apart("GPUSHARE_APPS", domain, page, "ACCEPTED", is_allowed=accepted)
