"""One try to send one message: bounded in seconds and bytes, whoever is at the other end and however slow."""

import asyncio
import contextlib
import json
import smtplib
import socket
import ssl
from collections.abc import Iterator
from datetime import datetime
from functools import cache
from threading import Timer

import httpx
from django.conf import settings
from django.core.mail import EmailMessage, get_connection

from web.models import Delivery, Receiver
from web.notifying import words

CONNECTS_WITHIN = 5.0  # seconds
DEADLINE = 20.0  # seconds, all in all; less than outbox.CLAIM
ANSWER_BYTES = 2048  # of an answer that are read; the rest is ignored


class NotSent(Exception):
    """The message says why. `unreachable`: not the message was refused, but nobody is there who could take it."""

    def __init__(self, message: str, *, unreachable: bool = False) -> None:
        super().__init__(message)
        self.unreachable = unreachable


def send(row: Delivery, now: datetime) -> None:
    """Raises NotSent. `now` is when it is sent, as the message tells it."""
    if row.receiver is None or row.receiver.kind == Receiver.Kind.MAIL:
        _mail(row)
    else:
        _post(row, row.receiver, now)


def _post(row: Delivery, receiver: Receiver, now: datetime) -> None:
    if receiver.kind == Receiver.Kind.ALERTMANAGER:
        url, said = f"{receiver.url.rstrip('/')}/api/v2/alerts", json.dumps(words.alertmanager(row, now))
    else:
        url, said = receiver.url, json.dumps(words.webhook(row, receiver))
    body = said.encode()
    headers = words.signed(receiver.secret, body, str(row.pk), now)
    try:
        status, answer = asyncio.run(_within_deadline(url, body, headers))
    except TimeoutError:
        raise NotSent(f"It did not answer within {DEADLINE:.0f} s.", unreachable=True) from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        raise NotSent(f"It could not be reached: {_said(error)}", unreachable=True) from None
    if not 200 <= status < 300:
        moved = " Redirects are not followed: enter the final address." if 300 <= status < 400 else ""
        raise NotSent(f"It answered {status}.{moved} {answer}".strip())


async def _within_deadline(url: str, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
    async with asyncio.timeout(DEADLINE):
        limits = httpx.Timeout(DEADLINE, connect=CONNECTS_WITHIN)
        # Neither a proxy nor a password from this process's environment is for whoever this is.
        async with (
            httpx.AsyncClient(verify=_trusted(), timeout=limits, follow_redirects=False, trust_env=False) as client,
            client.stream("POST", url, content=body, headers=headers) as response,
        ):
            read = b""
            if not response.is_success:
                with contextlib.suppress(httpx.HTTPError):
                    async for part in response.aiter_raw(ANSWER_BYTES):
                        read += part
                        if len(read) >= ANSWER_BYTES:
                            break
            return response.status_code, _printable(read[:ANSWER_BYTES].decode(errors="replace"))[:200]


@cache
def _trusted() -> ssl.SSLContext:
    """Whom this host trusts, which may have an authority of its own; reading that takes a tenth of a second."""
    return ssl.create_default_context()


def _mail(row: Delivery) -> None:
    subject, text = words.mail(row)
    to = row.receiver.addresses if row.receiver else [row.notice.user.email] if row.notice else []
    if not settings.EMAIL_HOST:
        raise NotSent("E-mail is not set up here: GPUSHARE_MAIL_HOST says which server takes it.")
    try:
        connection = get_connection()
        headers = {"Message-ID": f"<{row.pk}@gpushare>", "Auto-Submitted": "auto-generated"}
        letter = EmailMessage(subject, text, None, to, headers=headers, connection=connection)
        with _ended_after(connection, DEADLINE):
            if not letter.send():
                raise NotSent("It has no address to send to.")
    except (smtplib.SMTPConnectError, smtplib.SMTPServerDisconnected, OSError) as error:
        refused = isinstance(error, smtplib.SMTPResponseException | smtplib.SMTPRecipientsRefused)
        raise NotSent(f"The mail server does not take it: {_said(error)}", unreachable=not refused) from None
    except ValueError as error:  # an address or a line that no header may hold
        raise NotSent(f"It cannot be sent as a mail: {_said(error)}") from None


@contextlib.contextmanager
def _ended_after(connection: object, seconds: float) -> Iterator[None]:
    """Django bounds each word with the server; a server that says one every few seconds would hold on for ever."""

    def end() -> None:
        spoken = getattr(connection, "connection", None)
        if (line := getattr(spoken, "sock", None)) is not None:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    timer = Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _said(error: Exception) -> str:
    return _printable(str(error)) or type(error).__name__


def _printable(text: str) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
