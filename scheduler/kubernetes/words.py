"""What the kubelet shows in a pod's events when something could not be done."""

from __future__ import annotations

import logging

from django.db import DatabaseError

from scheduler.kubernetes.api.client import ApiError
from web.errors import Problem

log = logging.getLogger(__name__)


def in_words(error: Exception) -> str:
    match error:
        case Problem():
            return error.message
        case ApiError():
            return str(error)
        case TimeoutError():
            return "It could not be done in time; it goes on, and the kubelet asks again."
        case DatabaseError():
            log.error("a claim: the database: %s", error)
            return "The database did not take this. It is tried again."
        case OSError():
            log.error("a claim: the host: %s", error)
            where = f" ({error.filename})" if error.filename else ""
            return f"The host does not let the driver do this: {error.strerror or error}{where}."
    log.error("a claim could not be prepared", exc_info=error)
    return "The driver failed at this; its log tells more."
