"""Having the audit log verified, by whoever may read it."""

from django.contrib.auth.models import User

from web import audit
from web.audit import verified
from web.errors import conflict
from web.people.roles import Deed, require


def verify(user: User) -> None:
    """Begins; `verified.last` tells what was found. Raises Problem: 403, or 409 while one is under way."""
    require(user, Deed.READ_AUDIT)
    if not verified.start():
        raise conflict("It is being verified already.", code="under_way")
    audit.record(user.get_username(), "audit-verify")
