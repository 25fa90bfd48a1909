"""`gpushare doctor` on the database, Redis, the scheduler, the proxy and directories."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from django.db import DatabaseError, connection
from django.db.migrations.recorder import MigrationRecorder

from appliance.doctor import services
from appliance.doctor.finding import State
from tests.support.eventually import PATIENCE
from tests.support.findings import is_fine, one
from tests.support.machine import make_node
from tests.support.ports import free_port
from tests.support.site import Site, running_site
from tests.support.slapd import SLAPD, running_slapd

pytestmark = pytest.mark.django_db


def test_a_database_that_lacks_this_release_and_one_of_a_newer(transactional_db):
    assert is_fine(services.database)
    recorder = MigrationRecorder(connection)
    recorder.record_applied("web", "0999_from_the_future")
    try:
        assert "0999_from_the_future" in one(services.database).found
    finally:
        recorder.record_unapplied("web", "0999_from_the_future")
    last = sorted(name for app, name in recorder.applied_migrations() if app == "web")[-1]
    recorder.record_unapplied("web", last)
    try:
        assert "manage.py migrate" in one(services.database, State.NOTE).do
    finally:
        recorder.record_applied("web", last)


def test_a_database_that_does_not_answer(monkeypatch):
    def away(*_):
        raise DatabaseError("connection refused")

    monkeypatch.setattr(services, "MigrationExecutor", away)
    assert "DATABASE_URL" in one(services.database).do


def test_redis_that_is_away(settings):
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    assert "REDIS_URL" in one(services.redis).do


def test_a_scheduler_that_is_silent_or_has_lost_its_engine(settings):
    assert "so far" in one(services.scheduler, State.NOTE).found
    node = make_node(name=settings.GPUSHARE_NODE, engine_error="Docker is away.")
    assert "Docker is away." in one(services.scheduler).found
    node.engine_error, node.cannot_swap = "", "The driver is too old."
    node.save()
    assert "too old" in one(services.scheduler, State.NOTE).found


class _Stranger(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"status": "ok"}' if self.path == "/healthz" and self.server.answers else b"hello"  # type: ignore[attr-defined]
        self.send_response(404 if self.server.missing else 200)  # type: ignore[attr-defined]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def stranger() -> Iterator[ThreadingHTTPServer]:
    """A web server that is not ours; with `answers` it passes for a proxy that leads nothing but /healthz to us."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Stranger) as server:
        server.answers = server.missing = False  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_port_that_somebody_else_has(settings, stranger):
    settings.HOST, settings.PORT = "127.0.0.1", stranger.server_port
    assert "Another program listens" in one(services.port).found
    settings.PORT = free_port()
    assert is_fine(services.port)
    settings.HOST = "192.0.2.1"
    assert "an address of this host" in one(services.port).do


def test_a_proxy_that_is_away_leads_elsewhere_or_passes_no_websockets(settings, stranger):
    settings.GPUSHARE_TRUSTED_PROXIES = ["127.0.0.1"]
    settings.CSRF_TRUSTED_ORIGINS = ["http://127.0.0.1:1"]
    assert "does not answer" in one(services.proxy).found
    settings.CSRF_TRUSTED_ORIGINS = [f"http://127.0.0.1:{stranger.server_port}"]
    assert "not as the appliance" in one(services.proxy).found
    stranger.answers = True
    assert "does not pass on WebSockets" in one(services.proxy).found


@pytest.fixture
def site(tmp_path: Path, django_db_blocker, transactional_db) -> Iterator[Site]:
    with running_site(tmp_path, django_db_blocker, GPUSHARE_ALLOWED_HOSTS="127.0.0.1") as site:
        yield site


def test_an_appliance_that_is_reached_through_its_name_and_through_one_it_does_not_know(settings, site, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # of the lab, and not for this host
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setattr(services, "WITHIN", PATIENCE)
    settings.HOST, settings.PORT = "127.0.0.1", int(site.url.rpartition(":")[2])
    settings.ALLOWED_HOSTS = ["127.0.0.1"]
    for settings.HOST in ("0.0.0.0", "127.0.0.1"):
        assert "The appliance answers" in next(services.port()).found
    settings.GPUSHARE_TRUSTED_PROXIES = ["127.0.0.1"]
    settings.CSRF_TRUSTED_ORIGINS = [site.url]
    assert is_fine(services.proxy), list(services.proxy())
    settings.CSRF_TRUSTED_ORIGINS = [f"http://localhost:{settings.PORT}"]
    assert "does not know that name" in one(services.proxy).found
    settings.CSRF_TRUSTED_ORIGINS = [site.url]
    settings.GPUSHARE_TRUSTED_PROXIES = []
    assert "GPUSHARE_TRUSTED_PROXIES" in one(services.proxy, State.NOTE).found


@pytest.mark.skipif(SLAPD is None, reason="needs slapd")
def test_a_directory_that_does_not_let_us_in(settings, tmp_path):
    directory = pytest.importorskip("appliance.directory")
    pytest.importorskip("django_auth_ldap", reason="needs the extra 'signin'")
    with running_slapd(tmp_path) as url:
        given = {"GPUSHARE_LDAP_URL": url, "GPUSHARE_LDAP_PEOPLE": "dc=lab",
                 "GPUSHARE_LDAP_BIND_DN": "cn=reader,dc=lab", "GPUSHARE_LDAP_BIND_PASSWORD": "reads"}  # fmt: skip
        settings.LDAP = directory.ldap(given)
        assert is_fine(services.ldap)
        settings.LDAP = directory.ldap(given | {"GPUSHARE_LDAP_BIND_PASSWORD": "wrong"})
        assert "Invalid credentials" in one(services.ldap).found


def test_a_provider_that_is_away_or_says_that_it_has_no_such_page(settings, stranger):
    url = f"http://127.0.0.1:{stranger.server_port}/authorize"
    settings.OIDC = {"OIDC_OP_AUTHORIZATION_ENDPOINT": url, "OIDC_OP_TOKEN_ENDPOINT": "http://127.0.0.1:1/token"}
    assert "http://127.0.0.1:1/token does not answer" in one(services.oidc).found
    stranger.missing = True
    settings.OIDC = {"OIDC_OP_AUTHORIZATION_ENDPOINT": url}
    assert "answers 404" in one(services.oidc).found


# ---- the whole ----
