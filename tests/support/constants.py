"""Settings of a process of its own, in which constants of the source have other values: `with_constants(…)`."""

import json
import os
from pkgutil import resolve_name
from typing import Any

from django.apps import AppConfig

from appliance.settings import *  # noqa: F403
from appliance.settings import INSTALLED_APPS


def with_constants(values: dict[str, Any]) -> dict[str, str]:
    """The environment in which each of these ("web.http.gate.BODY_SECONDS") has the value given here."""
    return {"DJANGO_SETTINGS_MODULE": __name__, "TEST_CONSTANTS": json.dumps(values)}


class Constants(AppConfig):
    name = "tests.support"

    def ready(self) -> None:
        for path, value in json.loads(os.environ["TEST_CONSTANTS"]).items():
            owner, _, name = path.rpartition(".")
            found = resolve_name(owner)
            assert hasattr(found, name), path
            setattr(found, name, value)


INSTALLED_APPS = [*INSTALLED_APPS, f"{__name__}.Constants"]
