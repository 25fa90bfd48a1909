"""A hostile application, in a real Chromium, opened by somebody who is signed in at the dashboard as an admin: for each
arrangement of origins that is offered. `ATTACK` is what its page does; `Lab` is how it is reached."""

import asyncio
import datetime
import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from django.conf import settings
from playwright.sync_api import BrowserContext, Page, expect, sync_playwright

from appliance.cli.opening.listening import Opened
from appliance.heads import Near, label
from tests.support.apps import Scheduler
from tests.support.chromium import CHROMIUM, FLAGS
from tests.support.machine import make_container
from tests.support.site import ROOT, Site, person, running_site
from web.models import Command, Container

DASHBOARD = "gpu1.lab.example"
ENOUGH = 400  # cookies: Chromium keeps 180 of a site

ATTACK = """async ([dashboard, domains, enough]) => {
  const gained = {read: [], worker: [], opened: 0};
  const attempt = async (work) => { try { return await work() } catch (error) { return String(error.name) } };
  for (const path of ["/", "/api/v1/me/", "/login/"])
    for (const mode of ["cors", "no-cors"]) {
      const answer = await attempt(() => fetch(dashboard + path, {credentials: "include", mode}));
      if (answer.text) gained.read.push(await answer.text());
    }
  for (const [path, body] of [["/api/v1/containers/", '{"image": "local"}'], ["/me/tokens/", "name=evil"]])
    await attempt(() => fetch(dashboard + path, {method: "POST", credentials: "include", mode: "no-cors", body}));
  for (const kind of ["img", "script", "iframe"])
    await new Promise(done => {
      const made = Object.assign(document.createElement(kind), {onload: done, onerror: done});
      made.src = dashboard + "/?" + kind;
      document.body.append(made);
    });
  gained.frame = await attempt(() => document.querySelector("iframe").contentWindow.document.cookie);
  gained.socket = await new Promise(done => {
    const made = new WebSocket(dashboard.replace("http", "ws") + "/ws/dashboard/");
    made.onmessage = event => done(event.data);
    made.onclose = () => done("");
  });
  for (const url of [dashboard + "/sw.js", "/sw.js"])
    gained.worker.push(await attempt(async () => (await navigator.serviceWorker.register(url, {scope: "/"})).scope));
  for (const name of ["sessionid", "csrftoken", "__Host-sessionid", "__Host-csrftoken"])
    for (const domain of domains)
      for (const more of ["", "; secure"]) document.cookie = `${name}=EVIL; path=/; domain=${domain}${more}`;
  for (let one = 0; one < enough; one++)
    for (const domain of domains) document.cookie = `c${one}=x; path=/; secure; domain=${domain}`;
  gained.cookies = document.cookie;
  return gained;
}"""


async def hostile(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A page, or a service worker for all that it may have; its headers try what a page cannot."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            is_worker = head.split()[1] == "/sw.js"
            body = b"self.addEventListener('fetch', () => {})" if is_worker else b"<!DOCTYPE html><body>hostile</body>"
            domains = ("lab.example", DASHBOARD, "apps.lab.example", "lab-apps.example", "localhost")
            lines = [
                "HTTP/1.1 200 OK",
                f"Content-Type: {'text/javascript' if is_worker else 'text/html'}",
                f"Content-Length: {len(body)}",
                "Service-Worker-Allowed: /",
                'Clear-Site-Data: "cookies", "storage"',
                *(f"Set-Cookie: {n}=EVIL; Path=/; Domain={d}" for n in ("sessionid", "csrftoken") for d in domains),
            ]
            writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + body)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


class Loop:
    """An event loop in a thread of its own: this one is Playwright's."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._servers: list[asyncio.Server] = []

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        async def end() -> None:
            for server in self._servers:
                server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for each in others:
                each.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self.run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def listen(self, serve: Callable[..., Any], tls: ssl.SSLContext | None = None) -> int:
        server = self.run(asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls))
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])


def certificate(folder: Path) -> ssl.SSLContext:
    """Chromium is started so that it believes it (--ignore-certificate-errors)."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, DASHBOARD)])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(
        name, name, key.public_key(), 1, now - datetime.timedelta(1), now + datetime.timedelta(1)
    )
    path = folder / "tls.pem"
    path.write_bytes(
        made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


def to(port: int) -> Callable[..., Any]:
    """Passes all on, as a proxy that speaks TLS."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_pass(reader, far[1]), _pass(far[0], writer), return_exceptions=True)

    return serve


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
    finally:
        writer.close()


class Lab:
    """`dashboard` and `application` are origins; `boss` an admin's browser, `member` that of somebody with no right."""

    def __init__(self, site: Site, dashboard: str, cookie: str, chromium: Any) -> None:
        self.site, self.dashboard, self._cookie, self._chromium = site, dashboard, cookie, chromium
        self.application = ""
        self._contexts: list[BrowserContext] = []

    def browser(self, name: str, role: str) -> BrowserContext:
        context: BrowserContext = self._chromium.new_context(ignore_https_errors=True)
        self._contexts.append(context)
        context.set_default_timeout(120_000)
        cookie = {**self.site.cookie(person(name, role)), "name": self._cookie, "url": self.dashboard}
        context.add_cookies([{**cookie, "secure": self.dashboard.startswith("https"), "httpOnly": True}])  # type: ignore[typeddict-unknown-key]
        return context

    def close(self) -> None:
        for each in self._contexts:
            each.close()


@contextmanager
def chromium_that_finds(ports: dict[str, int]) -> Iterator[Any]:
    rules = ", ".join(f"MAP {name} 127.0.0.1:{port}" for name, port in ports.items())
    flags = [*FLAGS, "--ignore-certificate-errors", *([f"--host-resolver-rules={rules}"] if rules else [])]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


ARRANGEMENTS = {"open": "", "apps": "lab-apps.example", "same-site": "apps.lab.example"}


@pytest.fixture(params=ARRANGEMENTS)
def lab(
    request: pytest.FixtureRequest, tmp_path: Path, django_db_blocker: Any, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Lab]:
    if not CHROMIUM:
        pytest.skip("no chromium on PATH")
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")  # Playwright's loop is not ours, and nobody awaits meanwhile
    domain = ARRANGEMENTS[request.param]
    with (
        _opened(domain, tmp_path, django_db_blocker, loop)
        if domain
        else _on_a_laptop(tmp_path, django_db_blocker, loop) as made
    ):
        yield made
        made.close()


@contextmanager
def _on_a_laptop(home: Path, blocker: Any, loop: Loop) -> Iterator[Lab]:
    with running_site(home, blocker) as site, chromium_that_finds({}) as chromium, site.database():
        made = Lab(site, site.url.replace("127.0.0.1", "localhost"), settings.SESSION_COOKIE_NAME, chromium)
        container = make_container(person("mallory"), "lab")
        application = loop.listen(hostile)

        class Here(Opened):
            async def _dial(self) -> Any:
                return Near(*await asyncio.open_connection("127.0.0.1", application))

        name = label(container.name, str(container.pk))
        opened = Here(None, {}, name, browser=False)  # type: ignore[arg-type]
        port = loop.listen(opened._serve)
        opened._inner, opened._own = 8888, f"{name}-8888.localhost:{port}"
        made.application = f"http://{opened._own}"
        yield made


@contextmanager
def _opened(domain: str, home: Path, blocker: Any, loop: Loop) -> Iterator[Lab]:
    tls = certificate(home)
    environment = {
        "GPUSHARE_TLS": "1",
        "GPUSHARE_PUBLIC_URL": f"https://{DASHBOARD}",
        "GPUSHARE_ALLOWED_HOSTS": f"127.0.0.1 {DASHBOARD}",
        "GPUSHARE_APPS": f"*.{domain}",
        "GPUSHARE_APPS_LISTEN": "127.0.0.1:0",
        "GPUSHARE_APPS_SAME_SITE": "1",
    }
    scheduler = Scheduler(hostile)
    with running_site(home, blocker, **environment) as site:
        loop.run(scheduler.open(home))
        with _door(home, environment) as door:
            names = {DASHBOARD: int(site.url.rpartition(":")[2]), f"*.{domain}": door}
            found = {name: loop.listen(to(port), tls) for name, port in names.items()}
            with chromium_that_finds(found) as chromium, site.database():  # Playwright first: it has a loop of its own
                made = Lab(site, f"https://{DASHBOARD}", "__Host-sessionid", chromium)
                container = make_container(person("mallory"), "lab")
                Container.objects.update(app="8888")
                made.application = f"https://{label(container.name, str(container.pk))}-8888.{domain}"
                yield made
        loop.run(scheduler.close())


@contextmanager
def _door(home: Path, environment: dict[str, str]) -> Iterator[int]:
    env = {
        **os.environ, **environment, "DATABASE_URL": f"sqlite:///{home / 'gpushare.sqlite3'}",
        "GPUSHARE_HOME": str(home), "GPUSHARE_SECRET_KEY": settings.SECRET_KEY,
    }  # fmt: skip
    command = [sys.executable, "manage.py", "rundoor"]
    with open(home / "door.log", "wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline().rpartition(":")[2])
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


def cookies(context: BrowserContext, lab: Lab) -> dict[str, list[str]]:
    """That the dashboard is sent."""
    found: dict[str, list[str]] = {}
    for each in context.cookies(lab.dashboard):
        found.setdefault(each["name"], []).append(each["value"])
    return found


def asked_with_rights(page: Page, lab: Lab) -> list[str]:
    """What the dashboard answers from now on, but by a refusal, to requests that bring somebody's session."""
    found: list[str] = []

    def look(answer: Any) -> None:
        if answer.url.startswith(lab.dashboard) and answer.status != 403:
            brought = answer.request.all_headers().get("cookie", "")
            found.append(f"{answer.request.method} {answer.url}: {answer.status} {brought}")

    page.context.on("response", look)
    return found


def test_a_hostile_application_gets_nothing_of_the_dashboard(lab: Lab) -> None:
    boss = lab.browser("boss", "admin")
    page = boss.new_page()
    page.goto(lab.dashboard)
    expect(page.get_by_role("heading", level=1).first).to_be_visible()
    before = cookies(boss, lab)
    assert len(before) == 2  # session and CSRF token
    page.goto(f"{lab.application}/")
    expect(page.get_by_text("hostile")).to_be_visible()
    assert cookies(boss, lab) == before  # not by headers
    answered = asked_with_rights(page, lab)
    commands = Command.objects.count()

    site = "localhost" if lab.dashboard.startswith("http:") else "lab.example"
    domains = [site, urlsplit(lab.dashboard).hostname, lab.application.partition(".")[2].partition(":")[0]]
    gained = page.evaluate(ATTACK, [lab.dashboard, domains, ENOUGH])
    secrets = [value for values in before.values() for value in values]
    assert not any(secret in json.dumps(gained) for secret in secrets)
    assert not any(gained["read"])
    assert gained["socket"] == ""
    assert gained["frame"] in ("SecurityError", "")
    assert gained["worker"] == ["SecurityError", f"{lab.application}/"]
    assert not [each for each in answered if any(secret in each for secret in secrets)]
    assert Command.objects.count() == commands
    assert not Container.objects.exclude(name="lab").exists()

    after = cookies(boss, lab)
    if lab.application.endswith(".apps.lab.example"):  # as docs/apps.md says of it
        assert not set(before) & set(after)
        assert any(name.startswith("c") for name in after)
        return
    assert after == before
    page.goto(lab.dashboard)
    expect(page.locator("body")).to_have_attribute("data-me", "boss")
    assert page.evaluate("navigator.serviceWorker ? navigator.serviceWorker.controller : null") is None


def test_another_member_s_application_is_refused(lab: Lab) -> None:
    if lab.application.startswith("http:"):
        return  # `gpushare open` is asked by nobody else: tests/cli/test_opening.py
    page = lab.browser("eve", "user").new_page()
    answer = page.goto(f"{lab.application}/")
    assert answer is not None
    assert urlsplit(answer.url).hostname == DASHBOARD
    assert answer.status == 403
    expect(page.get_by_role("alert")).to_contain_text("belongs to mallory")
