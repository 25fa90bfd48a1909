"""The ways in which somebody who is signed in no longer is."""

from collections.abc import Callable

from django.contrib.auth.models import User
from django.test import Client


def cookie_of(browser: Client) -> tuple[bytes, bytes]:
    """As a header of a WebSocket's."""
    return b"cookie", f"sessionid={browser.cookies['sessionid'].value}".encode()


def sign_out(user: User, browser: Client) -> None:
    browser.logout()


def end_session(user: User, browser: Client) -> None:
    browser.session.delete(browser.session.session_key)


def change_password(user: User, browser: Client) -> None:
    user.set_password("another")
    user.save()


def switch_off(user: User, browser: Client) -> None:
    User.objects.filter(pk=user.pk).update(is_active=False)


def delete(user: User, browser: Client) -> None:
    user.delete()


WAYS: list[Callable[[User, Client], None]] = [sign_out, end_session, change_password, switch_off, delete]
