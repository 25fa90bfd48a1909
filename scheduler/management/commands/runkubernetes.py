"""`manage.py runkubernetes`: the scheduler of a node of Kubernetes, which is that node's driver, too."""

from typing import Any

from django.conf import settings
from django.core.management.base import CommandError
from django.db import connection

from scheduler.management.commands import runscheduler
from web.schema import is_new

ALONE = (
    "DATABASE_URL is not set: this driver has no web side, and nobody would see what it does. It comes from a Secret "
    "of its namespace (gpushare), or from /etc/gpushare/gpushare.env of a node that has joined: docs/kubernetes.md."
)


class Command(runscheduler.Command):
    help = "Runs this node's scheduler in the foreground, as a driver of its kubelet's. Pods run on when it is stopped."

    def handle(self, *args: Any, **options: Any) -> None:
        settings.GPUSHARE_ENGINE = "kubernetes"
        super().handle(*args, **options)

    def _prepare(self) -> None:
        if connection.vendor == "sqlite" and is_new():
            raise CommandError(ALONE)
        super()._prepare()
