"""A host is invited, and joins, only with settings that are one line each in its file."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from web.errors import Problem
from web.models import Invitation, Node
from web.people.tokens import digest
from web.schema import last_change
from web.services.joining import invitations

pytestmark = pytest.mark.django_db
SETTINGS = ["GPUSHARE_NODES_DATABASE", "GPUSHARE_NODES_REDIS", "REDIS_URL", "GPUSHARE_PUBLIC_URL"]


@pytest.fixture(params=SETTINGS)
def hostile(request: Any, settings: Any) -> str:
    setattr(settings, request.param, "redis://gpu1:6379/0\rGPUSHARE_BYPASS_ACTION=kill")
    return str(request.param)


def test_nobody_is_invited_with_a_control_character(hostile: str) -> None:
    with pytest.raises(Problem, match=f"{hostile}.* has a control character") as refused:
        invitations.invite("root", "gpu2")
    assert (refused.value.status, refused.value.code) == (409, "bad_setting")
    assert not Invitation.objects.exists()


def test_nobody_joins_with_a_control_character(hostile: str, settings: Any) -> None:
    expires = timezone.now() + timedelta(hours=1)
    Invitation.objects.create(name="gpu2", digest=digest("gpn_x"), expires_at=expires)
    asked = {"token": "gpn_x", "node": "gpu2", "release": settings.GPUSHARE_VERSION, "schema": last_change()}
    with pytest.raises(Problem, match=f"{hostile}.* has a control character"):
        invitations.join(asked, "192.0.2.1")
    assert Invitation.objects.good().exists()  # the token stays good
    assert not Node.objects.filter(name="gpu2").exists()
