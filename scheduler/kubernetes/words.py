"""What the kubelet shows in a pod's events when something could not be done."""

import logging

from django.db import DatabaseError

from scheduler.kubernetes.api.client import ApiError
from web.errors import Problem

log = logging.getLogger(__name__)

LONGEST = 512  # characters of what others write; no name of an image that can be had is longer


def plain(text: object) -> str:
    """What a pod's author may have written, as a line: a database takes no NUL, and a screen no escapes."""
    return "".join(each if each.isprintable() else "\ufffd" for each in str(text)[:LONGEST])


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
    return "The driver failed at this; its log has details."
