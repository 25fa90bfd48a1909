"""The output of pods: the cluster keeps it. Where people read it, a setting says (GPUSHARE_KUBERNETES_LOGS)."""

import shlex
from dataclasses import dataclass
from urllib.parse import quote

from django.conf import settings

from web.models import Container


@dataclass(frozen=True, slots=True)
class Output:
    """Of one container of a pod. `link` is empty where the setting is; `command` works where kubectl does."""

    pod: str
    container: str
    account: str
    link: str
    command: str


def outputs(container: Container) -> list[Output]:
    """Nothing for one that is of no cluster."""
    return [
        Output(
            pod["name"],
            name,
            pod["account"],
            _link(namespace=container.namespace, pod=pod["name"], container=name),
            shlex.join(["kubectl", "logs", "-n", container.namespace, pod["name"], "-c", name]),
        )
        for pod in container.pods
        for name in pod["containers"]
    ]


def _link(**names: str) -> str:
    link: str = settings.GPUSHARE_KUBERNETES_LOGS
    for name, value in names.items():
        link = link.replace(f"{{{name}}}", quote(value, safe=""))
    return link
