"""Sign-in through an OpenID Connect provider, by mozilla-django-oidc.

The library checks the signature, the nonce and the expiry; that the token was made for us, and by whom, is checked
here.
"""

from typing import Any

import jwt
from django.core.exceptions import SuspiciousOperation
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseBase
from mozilla_django_oidc.auth import OIDCAuthenticationBackend
from mozilla_django_oidc.views import OIDCAuthenticationRequestView

from web.people import names
from web.people.accounts import one_at_a_time
from web.people.directory import follow_groups, is_local, is_usable

BEGUN = 600  # seconds that somebody may take at the provider; what is kept of one who never comes back goes with it


class Begin(OIDCAuthenticationRequestView):  # type: ignore[misc]
    """A stranger's session lasts as long as the way there and back; signing in makes it one of a person."""

    def get(self, request: HttpRequest) -> HttpResponseBase:
        answer: HttpResponseBase = super().get(request)
        if not request.user.is_authenticated:
            request.session.set_expiry(BEGUN)
        return answer


class Backend(OIDCAuthenticationBackend):  # type: ignore[misc]  # not installed where types are checked
    def verify_token(self, token: str, **kwargs: Any) -> dict[str, Any]:
        try:
            payload: dict[str, Any] = super().verify_token(token, **kwargs)
        except jwt.InvalidTokenError as error:  # an expired one is not among what the library expects
            raise SuspiciousOperation(f"The token is not valid: {error}") from error
        audience = payload.get("aud", [])
        if self.OIDC_RP_CLIENT_ID not in ([audience] if isinstance(audience, str) else audience):
            raise SuspiciousOperation("The token was made for another client.")
        if (issuer := self.get_settings("GPUSHARE_OIDC_ISSUER")) and payload.get("iss") != issuer:
            raise SuspiciousOperation("The token was made by another issuer.")
        return payload

    def get_user(self, user_id: Any) -> Any:
        user = super().get_user(user_id)
        return user if user is not None and user.is_active else None  # the library would keep their sessions open

    def verify_claims(self, claims: dict[str, Any]) -> bool:
        name = self.get_username(claims)
        return is_usable(name) and not is_local(name)

    def get_username(self, claims: dict[str, Any]) -> str:
        return str(claims.get(self.get_settings("GPUSHARE_OIDC_NAME_CLAIM")) or "")

    def filter_users_by_claims(self, claims: dict[str, Any]) -> QuerySet[Any]:
        user = names.account_of(self.get_username(claims))
        people: QuerySet[Any] = self.UserModel.objects.filter(pk=user and user.pk)
        return people

    def create_user(self, claims: dict[str, Any]) -> Any:
        name = self.get_username(claims)
        with one_at_a_time():  # the account may have been made since `verify_claims` and `filter_users_by_claims`
            if not is_usable(name):
                raise SuspiciousOperation("No account can have this name.")
            if is_local(name):
                raise SuspiciousOperation("This account has its password here.")
            user = names.account_of(name) or super().create_user(claims)
        return self.update_user(user, claims)

    def update_user(self, user: Any, claims: dict[str, Any]) -> Any:
        groups = claims.get(self.get_settings("GPUSHARE_OIDC_GROUPS_CLAIM")) or []
        follow_groups(user, [str(name) for name in groups] if isinstance(groups, list) else [])
        return user
