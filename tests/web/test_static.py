"""Static files: compressed, kept by browsers for good, and nothing but them."""

import re

import httpx
import pytest
from django.conf import settings
from django.contrib.staticfiles import finders

from appliance.asgi import application

STYLE = settings.BASE_DIR / "static" / "gpushare" / "style" / "base.css"


async def fetch(path: str, method: str = "GET", encoding: str = "gzip") -> httpx.Response:
    transport = httpx.ASGITransport(app=application)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await client.request(method, settings.STATIC_URL + path, headers={"Accept-Encoding": encoding})


async def test_a_file_is_sent_compressed_and_may_be_kept_for_good():
    answer = await fetch("gpushare/style/base.css")
    assert answer.status_code == 200
    assert answer.content == STYLE.read_bytes()
    assert answer.headers["content-encoding"] == "gzip"
    assert int(answer.headers["content-length"]) < len(STYLE.read_bytes()) / 2
    assert answer.headers["content-type"] == "text/css; charset=utf-8"
    assert "immutable" in answer.headers["cache-control"]
    assert answer.headers["vary"] == "accept-encoding"


async def test_who_takes_no_compression_gets_the_file_as_it_is():
    answer = await fetch("gpushare/style/base.css", encoding="identity")
    assert "content-encoding" not in answer.headers
    assert int(answer.headers["content-length"]) == len(STYLE.read_bytes())


async def test_a_head_request_has_the_headers_alone():
    answer = await fetch("gpushare/style/base.css", "HEAD", encoding="identity")
    assert answer.content == b""
    assert int(answer.headers["content-length"]) == len(STYLE.read_bytes())


async def test_what_is_already_compressed_is_left_alone():
    answer = await fetch("drf_spectacular_sidecar/swagger-ui-dist/favicon-32x32.png")
    assert answer.headers["content-type"] == "image/png"
    assert "content-encoding" not in answer.headers


@pytest.mark.parametrize(
    "path", ["", "gpushare", "gpushare/", "nothing.js", "../appliance/settings.py", "%2e%2e/manage.py", "gpushare/%00"]
)
async def test_nothing_else_is_there(path):
    assert (await fetch(path)).status_code == 404


async def test_files_are_only_read():
    answer = await fetch("gpushare/style/base.css", "POST")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD"


def test_another_content_means_another_address(tmp_path):
    from appliance.settings import _digest

    (tmp_path / "a.js").write_text("1")
    before = _digest(tmp_path)
    assert before == _digest(tmp_path)
    (tmp_path / "a.js").write_text("2")
    assert before != _digest(tmp_path)


def test_the_favicon_is_there(client):
    page = client.get("/nowhere/").content.decode()
    assert finders.find(re.search(r'<link rel="icon" href="/static/\w+/([^"]+)"', page)[1])


def test_no_size_changes_in_steps():
    """Each step of a transition of a width is a layout of the whole page: a change cost ten of them."""
    for path in STYLE.parent.glob("*.css"):
        assert not re.search(r"transition[^;}]*\b(width|height|left|top|margin|padding|all)\b", path.read_text()), path
