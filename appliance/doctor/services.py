"""What answers over a socket: the database, Redis, the scheduler, the port, the proxy before it, and directories."""

import errno
import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
from django.conf import settings
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor

from appliance import proxies
from appliance.doctor.finding import Finding, fine, note, wrong
from web.models import Node
from web.relay.reaching import LINK
from web.schema import newer_than_we
from web.services.joining import setup

CONNECTIONS = 50  # that the web side, its commands and a backup may have open at once
WITHIN = 5.0  # seconds for an answer
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "Z3B1c2hhcmUtZG9jdG9yIQ==",
}


def database() -> Iterator[Finding]:
    where = settings.DATABASES["default"]["NAME"]
    try:
        executor = MigrationExecutor(connection)
        missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
        newer = newer_than_we()
    except (DatabaseError, OSError) as error:
        yield wrong(
            f"{connection.vendor} at {where} does not answer: {error}.",
            "Nothing can start.",
            "Check DATABASE_URL, that the server runs, and that this user may connect.",
        )
        return
    if newer:
        yield wrong(
            f"The database is of a newer release (it knows {', '.join(newer)}).",
            "This release would read it wrongly.",
            "Install that release again, or restore a backup.",
        )
    elif missing:
        yield note(
            f"{len(missing)} migrations of this release are not applied.",
            "Separate services need them before they start; `make up` applies them itself.",
            "`manage.py migrate`",
        )
    else:
        yield fine(f"{connection.vendor} at {where}")
        yield from _connections()
        yield from _rights()


def _connections() -> Iterator[Finding]:
    """Whether PostgreSQL lets as many in as there are: each scheduler keeps a connection, the web side some."""
    if connection.vendor != "postgresql":
        return
    with connection.cursor() as cursor:
        names = "max_connections", "superuser_reserved_connections"
        cursor.execute("SELECT current_setting(%s)::int, current_setting(%s)::int", names)
        most, reserved = cursor.fetchone()
    nodes = Node.objects.listed().count()
    wanted = nodes + CONNECTIONS + reserved
    if most < wanted:
        yield wrong(
            f"PostgreSQL takes {most} connections ({reserved} of them superusers'), and there are {nodes} nodes.",
            "Each scheduler keeps one, the web side several. Beyond that, schedulers cannot write, users not sign in.",
            f"In postgresql.conf set max_connections to {wanted} or more, and restart it.",
        )


def _rights() -> Iterator[Finding]:
    """Whether the appliance's PostgreSQL role may more than it needs."""
    if connection.vendor != "postgresql":
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT rolname, rolsuper, rolcreaterole FROM pg_roles WHERE rolname = current_user")
        role, superuser, creates = cursor.fetchone()
    if superuser or creates:
        yield note(
            f"The PostgreSQL role {role} {'is a superuser' if superuser else 'can create roles (CREATEROLE)'}.",
            "A program that gets into the web side could run programs on PostgreSQL's host.",
            "Use a role that is no superuser." if superuser else setup.command(),
        )


def redis() -> Iterator[Finding]:
    if not settings.REDIS_URL:
        yield fine("not needed")
        return
    from redis import Redis
    from redis.exceptions import RedisError

    try:
        Redis.from_url(settings.REDIS_URL, socket_timeout=WITHIN, socket_connect_timeout=WITHIN).ping()
    except (RedisError, OSError, ValueError) as error:
        yield wrong(
            f"Redis does not answer: {error}.",
            "Screens and commands are up to a second late.",
            "Start it, or look at REDIS_URL.",
        )
    else:
        yield fine("answers")


def scheduler() -> Iterator[Finding]:
    try:
        node = Node.objects.filter(name=settings.GPUSHARE_NODE).first()
    except DatabaseError:
        yield note("It is not known whether it runs.", "The database records it.", "See database above.")
        return
    if node is None or not node.is_alive():
        seen = f"since {node.seen_at:%Y-%m-%d %H:%M} UTC" if node and node.seen_at else "so far"
        yield note(
            f"The scheduler of {settings.GPUSHARE_NODE} has given no sign of life {seen}.",
            "Nothing can be launched; programs continue within their leases.",
            "`make up`, or `systemctl start gpushare-scheduler`.",
        )
        return
    yield fine(f"running, with {node.engine} and the policy {node.policy}")
    if node.engine_error:
        yield wrong(f"Its engine is away: {node.engine_error}", "Nothing can be launched.", "See docker above.")
    if node.cannot_swap and settings.GPUSHARE_SWAP_MEMORY != 0:
        yield note(
            f"Memory cannot be swapped: {node.cannot_swap}",
            "No container is moved to host memory for others.",
            "docs/swapping.md; GPUSHARE_SWAP_MEMORY=0 switches it off.",
        )
    if settings.GPUSHARE_WEB:
        yield _link(settings.GPUSHARE_HOME / LINK)


def _link(path: Path) -> Finding:
    """What a scheduler that lives has noted of its link to the web side of another host."""
    since, why = json.loads(path.read_bytes()) if path.exists() else ("its start", "it is still dialling")
    if not why:
        return fine(f"linked to the web side at {settings.GPUSHARE_WEB} since {since}")
    return wrong(
        f"Not linked to the web side at {settings.GPUSHARE_WEB} since {since}. The last reason: {why}.",
        "The web side shows no output, terminals or ports of containers here.",
        f"`curl {settings.GPUSHARE_WEB}/healthz` must answer here: see GPUSHARE_WEB and HTTPS_PROXY. Where it does, "
        "restart gpushare-scheduler, and read the web side's log.",
    )


def port() -> Iterator[Finding]:
    host = f"[{settings.HOST}]" if ":" in settings.HOST else settings.HOST
    address = f"{host}:{settings.PORT}"
    try:
        family = socket.AF_INET6 if ":" in settings.HOST else socket.AF_INET
        with socket.socket(family) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((settings.HOST, settings.PORT))
        yield fine(f"{address} is free.")
        return
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            yield wrong(
                f"The web side cannot listen at {address}: {error.strerror}.",
                "The web side cannot be reached.",
                "HOST has to be an address of this host; a PORT below 1024 needs root.",
            )
            return
    name = settings.ALLOWED_HOSTS[0].replace("*", "localhost").lstrip(".")  # HOST may be all addresses, and no name
    answer = _get(f"http://{address}/healthz", {"Host": name}, direct=True)
    if isinstance(answer, str) or answer.text != '{"status": "ok"}':
        yield wrong(
            f"Another program listens at {address}.",
            "The web side cannot start.",
            f"`ss -ltnp 'sport = :{settings.PORT}'` names it; or choose another PORT.",
        )
    else:
        yield fine(f"The appliance answers at {address}.")


def proxy() -> Iterator[Finding]:
    if not settings.CSRF_TRUSTED_ORIGINS:
        yield fine("none: GPUSHARE_PUBLIC_URL is empty")
    for origin in settings.CSRF_TRUSTED_ORIGINS:
        answer = _get(f"{origin}/healthz")
        if isinstance(answer, str):
            yield wrong(
                f"{origin} does not answer: {answer}.",
                "The appliance cannot be reached from outside.",
                "Check the proxy, its certificate and the name's address.",
            )
            continue
        if answer.text != '{"status": "ok"}':
            yield wrong(
                f"{origin} answers {answer.status_code}, and not as the appliance.",
                "The pages cannot be opened from outside.",
                "Point the proxy at HOST and PORT (docs/production.md).",
            )
            continue
        named = _get(f"{origin}/api/v1/")  # /healthz answers by any name
        if not isinstance(named, str) and named.status_code == 400:
            yield wrong(
                f"{origin} is refused: the appliance does not know that name.",
                "The pages cannot be opened from outside.",
                "Add it to GPUSHARE_ALLOWED_HOSTS. The proxy must pass the Host header on.",
            )
            continue
        status = _get(f"{origin}/ws/dashboard/", {**UPGRADE, "Origin": origin})
        if isinstance(status, str) or status.status_code not in (101, 403):
            why = status if isinstance(status, str) else f"it answers {status.status_code}"
            yield wrong(
                f"{origin} does not pass on WebSockets: {why}.",
                "The dashboard and consoles do not update.",
                "Pass Upgrade and Connection on for /ws/ (docs/production.md).",
            )
        else:
            yield fine(f"{origin} leads to this appliance, WebSockets included.")
    if settings.CSRF_TRUSTED_ORIGINS and not settings.GPUSHARE_TRUSTED_PROXIES:
        yield note(
            "GPUSHARE_TRUSTED_PROXIES is empty.",
            "All users behind the proxy share one address's budgets.",
            "Set it to the proxy's address.",
        )


def ldap() -> Iterator[Finding]:
    given: dict[str, Any] = settings.LDAP
    if not given:
        yield fine("not used")
        return
    import ldap as library

    url = given["AUTH_LDAP_SERVER_URI"]
    server = library.initialize(url)
    try:
        for option, value in given["AUTH_LDAP_CONNECTION_OPTIONS"].items():
            server.set_option(option, value)
        if given["AUTH_LDAP_START_TLS"]:
            server.start_tls_s()
        server.simple_bind_s(given["AUTH_LDAP_BIND_DN"], given["AUTH_LDAP_BIND_PASSWORD"])
        people = given["AUTH_LDAP_USER_SEARCH"].base_dn
        server.search_s(people, library.SCOPE_BASE)
    except library.LDAPError as error:
        details = error.args[0] if error.args and isinstance(error.args[0], dict) else {}
        yield wrong(
            f"{url}: {details.get('desc', error)}.",
            "Users of the directory cannot sign in.",
            "Check GPUSHARE_LDAP_URL, _BIND_DN, _BIND_PASSWORD, _PEOPLE and _STARTTLS.",
        )
    else:
        yield fine(f"{url} accepts the bind, and {people} exists.")


def oidc() -> Iterator[Finding]:
    if not settings.OIDC:
        yield fine("not used")
        return
    for name in ("AUTHORIZATION", "TOKEN", "USER", "JWKS"):
        url = settings.OIDC.get(f"OIDC_OP_{name}_ENDPOINT")
        answer = _get(url) if url else ""
        if isinstance(answer, str) and url:
            yield wrong(
                f"{url} does not answer: {answer}.",
                "Users of the provider cannot sign in.",
                "Check the GPUSHARE_OIDC_*_URL and the connection from this host to the provider.",
            )
        elif not isinstance(answer, str) and (answer.status_code in (404, 410) or answer.status_code >= 500):
            yield wrong(
                f"{url} answers {answer.status_code}.",
                "Users of the provider cannot sign in.",
                "Compare with the provider's /.well-known/openid-configuration.",
            )
        elif url:
            yield fine(f"{url} answers")


def _get(url: str, headers: Mapping[str, str] | None = None, *, direct: bool = False) -> httpx.Response | str:
    """The answer's head and body, or why there is none. `direct`: without a proxy, as it is this host's own address."""
    try:
        way = httpx.HTTPTransport() if direct else proxies.transport(url)
        with (
            httpx.Client(transport=way, timeout=WITHIN) as client,
            client.stream("GET", url, headers=headers) as answer,
        ):
            if answer.status_code != 101:
                answer.read()
            return answer
    except (httpx.HTTPError, httpx.InvalidURL, proxies.BadProxy) as error:
        return str(error) or type(error).__name__
