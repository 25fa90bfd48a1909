"""A real JupyterHub with its proxy beside a real appliance; what they are made of is fetched by `make hub-test`."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.hub.a_hub import HUB, PROXY, Hub
from tests.support.appliance import ROOT, Appliance

sys.path.insert(0, str(ROOT / "contrib" / "jupyterhub"))  # a package of its own, which nothing here installs

PEOPLE = """
from datetime import timedelta
from django.contrib.auth.models import Group, User
from web.models import Allowance
from web.people import tokens
for name in ("ada", "bob"):
    User.objects.create_user(name)
service = User.objects.create_user("jupyterhub")
service.groups.add(Group.objects.get(name="launches-for-others"))
Allowance.objects.create(user=User.objects.get(username="bob"), containers=0)
print("key", tokens.make(service)[1])
"""


@pytest.fixture(scope="module")
def appliance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    appliance = Appliance(tmp_path_factory.mktemp("appliance") / "var", GPUSHARE_DEFAULT_ROLE="user")
    yield appliance
    appliance.close()


@pytest.fixture(scope="module")
def service_token(appliance: Appliance) -> str:
    """Of an account that an admin has put into the group."""
    said = subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "shell", "-v0", "-c", PEOPLE],
        env={**os.environ, "GPUSHARE_HOME": str(appliance.home), "DJANGO_SETTINGS_MODULE": "appliance.settings"},
        stdout=subprocess.PIPE, text=True, check=True,
    ).stdout  # fmt: skip
    return said.split()[-1]


@pytest.fixture(scope="module")
def hub(appliance: Appliance, service_token: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    for made in (HUB / "bin/jupyterhub", PROXY):
        if not made.exists():
            pytest.skip(f"{made.relative_to(ROOT)} is not there: `make hub-test` fetches JupyterHub and its proxy")
    hub = Hub(tmp_path_factory.mktemp("hub"), appliance, service_token)
    hub.start()
    yield hub
    hub.close()
