"""From a command to an answer that says what really happened: done, refused, or not known yet."""

from django.urls import reverse
from drf_spectacular.utils import OpenApiResponse
from rest_framework import status
from rest_framework.response import Response

from web.api.answers import CommandAnswer, ErrorAnswer, PendingAnswer
from web.models import Command
from web.services import steering

_MEANINGS = {
    400: "Something in the request is unknown or wrong; `field` names it.",
    401: "No token, or one that is wrong, has expired or was ended.",
    403: "The role, the token's scope or an allowance forbids it.",
    404: "There is no such thing.",
    409: "The state forbids it, or a name is taken.",
    429: "Too many requests; `Retry-After` says how many seconds to wait.",
    503: "The scheduler, the engine or the database is away; the message says whether something may have been done.",
}
ERRORS = {code: OpenApiResponse(ErrorAnswer, meaning) for code, meaning in _MEANINGS.items()}


def finished(command: Command) -> Command | Response:
    """The command once it is done, or the 202 if that takes longer. Raises the scheduler's refusal as a Problem."""
    command = steering.wait_for(command)
    if steering.settled(command):
        return command
    url = reverse("command-detail", args=[command.pk])
    answer = {"command": command.pk, "url": url, "message": command.text}
    return Response(PendingAnswer(answer).data, status.HTTP_202_ACCEPTED, headers={"Location": url})


def decided(command: Command) -> Response:
    """The answer for a command that is about the host as a whole: the queue's order, the policy."""
    result = finished(command)
    return result if isinstance(result, Response) else Response(CommandAnswer(result).data)
