"""From a command to an answer that says what really happened: done, refused, or not known yet."""

from __future__ import annotations

from django.urls import reverse
from drf_spectacular.utils import OpenApiResponse
from rest_framework import status
from rest_framework.response import Response

from web.api.answers import CommandAnswer, ErrorAnswer, PendingAnswer
from web.models import Command
from web.services import steering

ERRORS = {code: OpenApiResponse(ErrorAnswer) for code in (400, 401, 403, 404, 409, 429, 503)}


def finished(command: Command) -> Command | Response:
    """The command once it is done, or the 202 if that takes longer. Raises the scheduler's refusal as a Problem."""
    command = steering.wait_for(command)
    if steering.settled(command):
        return command
    url = reverse("command-detail", args=[command.pk])
    answer = {"command": command.pk, "url": url, "message": command.told}
    return Response(PendingAnswer(answer).data, status.HTTP_202_ACCEPTED, headers={"Location": url})


def decided(command: Command) -> Response:
    """The answer for a command about no single container."""
    result = finished(command)
    return result if isinstance(result, Response) else Response(CommandAnswer(result).data)
