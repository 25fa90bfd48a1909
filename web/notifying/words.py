"""What a message says: as JSON in the form that Alertmanager sends and takes, and as a mail.

The forms are those of https://prometheus.io/docs/alerting/latest/configuration/#webhook_config (version "4") and of
Alertmanager's API v2, `POST /api/v2/alerts`.
"""

import hashlib
import hmac
import json
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings

from web.models import Delivery, Receiver
from web.notifying.rules import severity_of

NEVER = "0001-01-01T00:00:00Z"  # what Alertmanager says of an end that has not come
LASTS = timedelta(hours=24)  # so long an Alertmanager holds on to what is not sent again
TEST_LASTS = timedelta(minutes=1)
SIGNATURE, IDEMPOTENCY = "X-Gpushare-Signature", "Idempotency-Key"

Labels = dict[str, str]
Json = dict[str, Any]


def labels_of(row: Delivery) -> Labels:
    """They are the same for as long as it goes on: a receiver knows by them what is over."""
    if row.episode is None:
        return {"alertname": "GpushareTest", "severity": "info", "node": settings.GPUSHARE_NODE}
    episode = row.episode
    found = {
        "alertname": "Gpushare" + episode.kind.title().replace("_", ""),
        "severity": severity_of(episode.kind).value,
        "kind": episode.kind,
        "node": episode.node or settings.GPUSHARE_NODE,
        "person": episode.person,
        "container": episode.container,
        "container_id": episode.container_id,
        "gpu": episode.gpu,
        "key": episode.key,
    }
    return {name: value for name, value in found.items() if value}


def fingerprint(labels: Labels) -> str:
    """Sixteen hexadecimal digits that are the same for the same labels."""
    return hashlib.sha256(json.dumps(labels, sort_keys=True).encode()).hexdigest()[:16]


def _link(row: Delivery) -> str:
    base = settings.GPUSHARE_PUBLIC_URL
    if base and row.episode and row.episode.container_id:
        return f"{base}/containers/{row.episode.container_id}/"
    return base and f"{base}/"


def _began(row: Delivery) -> datetime:
    return row.episode.began_at if row.episode else row.made_at


def _is_over(row: Delivery) -> bool:
    return row.phase == Delivery.Phase.RESOLVED


def webhook(row: Delivery, receiver: Receiver) -> Json:
    labels, annotations = labels_of(row), {"summary": row.text}
    status = "resolved" if _is_over(row) else "firing"
    alert = {
        "status": status,
        "labels": labels,
        "annotations": annotations,
        "startsAt": stamp(_began(row)),
        "endsAt": stamp(row.episode.ended_at) if _is_over(row) and row.episode and row.episode.ended_at else NEVER,
        "generatorURL": _link(row),
        "fingerprint": fingerprint(labels),
    }
    group = {"alertname": labels["alertname"]}
    return {
        "version": "4",
        "groupKey": f'{{}}:{{alertname="{labels["alertname"]}"}}:{alert["fingerprint"]}',
        "truncatedAlerts": 0,
        "status": status,
        "receiver": receiver.name,
        "groupLabels": group,
        "commonLabels": labels,
        "commonAnnotations": annotations,
        "externalURL": settings.GPUSHARE_PUBLIC_URL,
        "alerts": [alert],
    }


def alertmanager(row: Delivery, now: datetime) -> list[Json]:
    if _is_over(row) and row.episode and row.episode.ended_at:
        end = row.episode.ended_at
    else:
        end = now + (LASTS if row.episode else TEST_LASTS)
    alert = {
        "labels": labels_of(row),
        "annotations": {"summary": row.text},
        "startsAt": stamp(_began(row)),
        "endsAt": stamp(max(end, _began(row))),
    }
    return [alert | ({"generatorURL": _link(row)} if _link(row) else {})]


def stamp(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def signed(secret: str, body: bytes, identity: str, now: datetime) -> dict[str, str]:
    """The headers of a message. Time and id are under the signature: neither can be changed, and an old message that
    somebody sends again is known by them (docs/notifying.md)."""
    headers = {"Content-Type": "application/json", "User-Agent": "gpushare", IDEMPOTENCY: identity}
    if secret:
        at = int(now.timestamp())
        digest = hmac.new(secret.encode(), f"{at}.{identity}.".encode() + body, hashlib.sha256).hexdigest()
        headers[SIGNATURE] = f"t={at},v1={digest}"
    return headers


def mail(row: Delivery) -> tuple[str, str]:
    """Subject and text."""
    if row.notice is not None:
        subject, text = row.text, row.text
        about = f"containers/{row.notice.container_id}/" if row.notice.container_id else "calendar/"
        link = settings.GPUSHARE_PUBLIC_URL and f"{settings.GPUSHARE_PUBLIC_URL}/{about}"
        last = "You chose this notification on your page in gpushare."
    else:
        over = "Over: " if _is_over(row) else ""
        subject = f"{over}{labels_of(row)['severity']}: {row.text}"
        text, link = f"{over}{row.text}", _link(row)
        if row.episode:
            text += f"\n\nSince {row.episode.began_at:%Y-%m-%d %H:%M:%S} UTC."
        if row.episode and row.episode.person:
            text += f"\nOwner: {row.episode.person}."
        last = "An admin of gpushare added this address as a receiver."
    return _one_line(f"[gpushare] {subject}"), "\n\n".join(part for part in (text, link, last) if part) + "\n"


def _one_line(text: str) -> str:
    """A header ends where its line ends, and what follows would be another header."""
    return " ".join(text.split())[:200]
