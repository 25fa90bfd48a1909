"""NUL characters and halves of surrogate pairs: refused in words wherever a text comes in, and never a 500."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.test import Client
from django.test.client import encode_multipart

from appliance.asgi import application
from tests.support.people import client_for, make_user
from web.models import Command
from web.texts import fault_of

pytestmark = pytest.mark.django_db

BAD = {"NUL": "a\0", "surrogate": "a\ud800"}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
@pytest.mark.parametrize("where", [lambda t: t, lambda t: ["x", [t]], lambda t: {"a": {"b": t}}, lambda t: {t: 1}])
def test_it_is_found_however_deep(text, where):
    assert fault_of(where(text))
    deep: Any = where(text)
    for _ in range(100_000):
        deep = [deep]
    assert fault_of(deep)
    while isinstance(deep, list):  # or Python would take it apart by recursion
        deep = deep.pop()


def test_everything_else_is_fine():
    assert not fault_of({"a": ["ä", "\U0001f600", "\n", 1, None, True, ""]})


def _bodies(text: str) -> Iterator[dict[str, Any]]:
    yield {"image": "local", "command": [text]}
    yield {"image": "local", "env": {text: "1"}}
    yield {"image": text}
    yield {text: 1}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
@pytest.mark.parametrize("number", range(4))
def test_in_json(client, gpu, text, number):
    body = list(_bodies(text))[number]
    answer = client.generic("POST", "/api/v1/containers/", json.dumps(body), "application/json")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "not_json")
    assert not Command.objects.exists()


FORMS = ["/launch/", "/launch/forecast/", "/launch/body/", "/queue/policy/", "/queue/reorder/", "/login/"]


@pytest.mark.parametrize("path", FORMS)
@pytest.mark.parametrize("charset", ["utf-7", "raw-unicode-escape", "utf-16-le"])
def test_in_a_form_of_another_charset(browser, gpu, path, charset):
    """Some of Python's charsets make half a surrogate pair out of bytes."""
    halves = {"utf-7": b"+2AA-", "raw-unicode-escape": rb"\ud800", "utf-16-le": b"\0\0"}
    names = ("name", "image", "policy", "id", "gpus", "username", "password")
    form = encode_multipart("edge", dict.fromkeys(names, "MARK"))
    answer = browser.generic(
        "POST", path, form.replace(b"MARK", halves[charset]), f"multipart/form-data; boundary=edge; charset={charset}"
    )
    assert answer.status_code in (400, 413)
    assert not Command.objects.exists()


@pytest.mark.parametrize("text", ["%00", "%ED%A0%80", "%FF", "%C0%80"])
@pytest.mark.parametrize("path", ["/{}", "/?q={}", "/containers/rows/?{}=1", "/history/?gpu={}", "/history/{}/day/",
                                  "/gpus/{}/last-hour/", "/containers/rows/?q={}", "/launch/suggestion/?image={}",
                                  "/admin/web/gpu/{}/change/", "/reports/?from={}",
                                  "/admin/web/container/?q={}", "/login/?next={}", "/api/v1/{}",
                                  "/api/v1/containers/?owner={}", "/api/v1/containers/?{}=1",
                                  "/api/v1/peaks/?command={}", "/api/v1/allocations/?from={}"])  # fmt: skip
def test_in_an_address(browser, gpu, path, text):
    answer = browser.get(path.format(text))
    assert answer.status_code < 500
    if text == "%00" and not path.startswith("/api/"):
        assert (answer.status_code, "NUL" in answer.content.decode()) == (400, True)


def test_rest_names_the_parameter_that_holds_it(client):
    error = client.get("/api/v1/containers/?owner=%00").json()["error"]
    assert (error["code"], error["field"]) == ("invalid", "owner")


@pytest.mark.parametrize("path", ["/", "/api/v1/me/"])
def test_in_a_cookie(path):
    answer = Client().get(path, HTTP_COOKIE=r'sessionid="aaaaaaaaaa\000"')
    assert answer.status_code == 400
    assert "NUL" in answer.content.decode()


@pytest.mark.parametrize(
    ("cookie", "closed"),
    [(rb'sessionid="aaaaaaaa\000"', True), (b"sessionid=a\0b", True), (b"sessionid=a\xed\xa0\x80", False),
     (rb'sessionid="\355\240\200"', False)],
)  # fmt: skip
async def test_in_the_cookie_of_a_websocket(cookie, closed):
    headers = [(b"origin", b"http://localhost"), (b"host", b"localhost"), (b"cookie", cookie)]
    scope = {"type": "websocket", "path": "/ws/dashboard/", "headers": headers, "query_string": b""}
    socket = ApplicationCommunicator(application, scope)
    await socket.send_input({"type": "websocket.connect"})
    message = await socket.receive_output(60)
    assert message["type"] in (["websocket.close"] if closed else ["websocket.accept", "websocket.close"])
    await socket.send_input({"type": "websocket.disconnect", "code": 1005})
    await socket.wait()


def test_in_headers(gpu):
    client = client_for(make_user("ada"))
    for name in ("Idempotency-Key", "User-Agent", "Accept", "Referer", "X-Forwarded-For"):
        for value in ("\x01", "\xed\xa0\x80", "ÿ"):
            assert client.get("/api/v1/me/", headers={name: value}).status_code < 500, (name, value)
