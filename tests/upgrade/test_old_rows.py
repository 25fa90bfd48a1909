"""A scheduler of before goes on until its host is upgraded, too: the database takes its rows meanwhile."""

from __future__ import annotations

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from tests.support.machine import make_node
from tests.support.people import make_user
from web.models import Container

ONE_NODE = ("web", "0021_sum_of_weights")  # the last change before there were several nodes


@pytest.mark.django_db
def test_what_docker_starts_on_a_host_that_is_not_upgraded_yet_has_its_record() -> None:
    ada, node = make_user("ada"), make_node()
    before = MigrationExecutor(connection).loader.project_state(ONE_NODE).apps
    fields = {"name": "mounted", "owner_id": ada.pk, "node_id": node.pk, "image": "local", "volume": "v", "mount": "m"}
    made = before.get_model("web", "Container").objects.create(**fields)
    before.get_model("web", "Command").objects.create(kind="pause", container_id=made.pk)
    found = Container.objects.get(pk=made.pk)
    assert (found.constraints, found.restart, found.handed, found.node_asked, found.node_reason) == ([], "", "", "", "")
