"""Applications at host names of their own (GPUSHARE_APPS): who is let in, and for how long. The application and the
scheduler's end are the test's, the rest is what runs."""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.test import Client

from appliance.running import apps
from appliance.running.apps import COOKIE, AppsDoor
from tests.support.apps_lab import LINK, OWN, UPGRADE, Lab
from tests.support.eventually import PATIENCE, eventually
from tests.support.machine import make_container
from tests.support.people import make_user
from web.budgets import Places
from web.console import ports
from web.console.frames import connect_to_port
from web.models import AppGuest, AppSession, AuditEntry, Container
from web.people import visitor
from web.people.roles import Role

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
async def lab(tmp_path: Path, settings: Any) -> AsyncIterator[Lab]:
    settings.GPUSHARE_HOME = tmp_path
    settings.GPUSHARE_APPS, settings.GPUSHARE_PUBLIC_URL = "lab-apps.example", "https://gpu1.lab.example"
    made = Lab(tmp_path)
    await made.open()
    yield made
    await made.close()


async def test_its_owner_is_sent_to_the_dashboard_and_back_and_is_in(lab: Lab) -> None:
    cookie = await lab.enter(lab.owner)
    answer = await lab.ask("/lab?a=1", f"theirs=1; {cookie}", Origin=f"https://{lab.host}", **OWN)
    assert answer.status == 200
    heard = json.loads(answer.body).lower()
    assert "host: localhost:8888\r\n" in heard
    assert "origin: http://localhost:8888\r\n" in heard
    assert "cookie: theirs=1\r\n" in heard
    assert lab.scheduler.asked == [{"container": str(lab.container.pk), "port": 8888}]
    entry = await AuditEntry.objects.aget(action="app-opened")
    assert (entry.actor, entry.detail["port"]) == ("owner", 8888)


async def test_its_cookie_is_that_of_this_host_alone_and_no_script_s(lab: Lab) -> None:
    there, browser = await lab.sent_back(lab.owner)
    answer = await lab.ask(there.removeprefix(f"https://{lab.host}"), browser, **LINK)
    assert COOKIE.startswith("__Host-Http-")
    assert "Path=/; Secure; HttpOnly; SameSite=Lax" in answer.attributes
    assert not any("domain" in each.lower() for each in answer.attributes)
    assert answer.cookies[COOKIE] not in str([each async for each in AppSession.objects.values()])


async def test_a_code_is_good_once_for_one_browser_and_one_application(lab: Lab, settings: Any) -> None:
    there, browser = await lab.sent_back(lab.owner)
    path = there.removeprefix(f"https://{lab.host}")
    for cookie in ("", f"{apps.BROWSER}=another", f"{apps.BROWSER}="):
        assert (await lab.ask(path, cookie, **LINK)).status == 403
    host = lab.host
    lab.host = host.replace("-8888.", "-8889.")
    assert (await lab.ask(path, browser, **LINK)).status == 403
    lab.host = host
    both = await asyncio.gather(*(lab.ask(path, browser, **LINK) for _ in range(4)))
    assert sorted(each.status for each in both) == [303, 403, 403, 403]


@pytest.mark.parametrize(
    "to", ["//evil.example/", "https://evil.example/", "/\r\nSet-Cookie: a=1", "\\\\evil.example", "", ".evil.example/"]
)
async def test_a_code_leads_to_its_own_application_only(lab: Lab, to: str) -> None:
    sent = await lab.ask("/", **LINK)
    there = await lab.at_the_dashboard(lab.owner, f"{sent.location.partition('to=')[0]}{urlencode({'to': to})}")
    if not there:  # refused by the dashboard already
        return
    browser = "; ".join(f"{name}={value}" for name, value in sent.cookies.items())
    answer = await lab.ask(there.removeprefix(f"https://{lab.host}"), browser, **LINK)
    assert urlsplit(answer.location).hostname == lab.host
    assert "a" not in answer.cookies


@pytest.mark.parametrize(("role", "may"), [(Role.USER, False), (Role.VIEWER, False), (Role.OPERATOR, True)])
async def test_who_may_not_steer_it_gets_no_code(lab: Lab, role: Role, may: bool) -> None:
    there, _ = await lab.sent_back(await sync_to_async(make_user)("dora", role))
    assert bool(there) is may
    assert may or "belongs to owner" in lab.said


async def test_a_guest_opens_the_application_and_no_other_port(lab: Lab) -> None:
    guest = await sync_to_async(make_user)("guest", Role.VIEWER)
    await AppGuest.objects.acreate(container=lab.container, user=guest)
    cookie = await lab.enter(guest)
    assert (await lab.ask("/lab", cookie, **OWN)).status == 200
    lab.host = lab.host.replace("-8888.", "-22.")
    assert (await lab.ask("/", cookie, **OWN)).status == 401
    assert (await lab.sent_back(guest))[0] == ""


@pytest.mark.parametrize("ends", ["signs out", "is disabled", "is no operator", "loses the cookie", "container"])
async def test_a_right_that_ends_closes_what_is_open(lab: Lab, ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visitor, "LOOK_AGAIN", 0.05)
    dora = await sync_to_async(make_user)("dora", Role.OPERATOR)
    cookie = await lab.enter(dora)
    reader, writer = await lab.connect()
    writer.write(lab.asking("/upgrade", cookie, **UPGRADE))
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"still")
    assert await reader.readexactly(5) == b"STILL"

    @sync_to_async
    def end() -> None:
        match ends:
            case "signs out":
                lab.browser.logout()
            case "is disabled":
                User.objects.filter(pk=dora.pk).update(is_active=False)
            case "is no operator":
                dora.groups.clear()
            case "loses the cookie":
                AppSession.objects.all().delete()
            case "container":
                Container.objects.update(finished_at=lab.container.created_at)

    await end()
    async with asyncio.timeout(PATIENCE):
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()
    answer = await lab.ask("/", cookie, **OWN)
    assert answer.status in (401, 403, 404)


async def test_a_page_without_a_session_is_refused_in_words_and_a_person_is_sent_to_sign_in(lab: Lab) -> None:
    assert (await lab.ask("/api", **OWN)).status == 401
    assert (await lab.ask("/", method="POST", **LINK)).status == 401
    assert (await lab.ask("/", f"{COOKIE}=made-up", **LINK)).status == 303
    assert (await lab.ask("/", Accept="text/html,*/*")).status == 303  # a browser that says no Sec-Fetch
    assert not lab.scheduler.asked


@pytest.mark.parametrize(
    "host", ["gpu1.lab.example", "lab-apps.example", "a.b.lab-apps.example", "é.lab-apps.example", ""]
)
async def test_another_name_is_none_of_ours(lab: Lab, host: str) -> None:
    lab.host = host
    assert (await lab.ask("/", **LINK)).status in (400, 421)


@pytest.mark.parametrize(
    "name", ["lab-00000000-8888", "lab", "x" * 63, "lab-8888", "other-{id}-8888", "lab-{id}-99999"]
)
async def test_a_name_of_nothing_that_runs_is_reported(lab: Lab, name: str) -> None:
    lab.host = f"{name.replace('{id}', str(lab.container.pk)[:8])}.lab-apps.example"
    assert (await lab.sent_back(lab.owner))[0] == ""
    assert "may have ended" in lab.said


async def test_another_site_s_page_reaches_no_application(lab: Lab) -> None:
    cookie = await lab.enter(lab.owner)
    for headers in ({"Origin": "https://evil.lab-apps.example"}, {**OWN, "Sec-Fetch-Site": "same-site"}):
        answer = await lab.ask("/", cookie, **headers)
        assert answer.status == 403
    assert not lab.scheduler.asked


@pytest.mark.parametrize(("path", "status"), [("/cut", 200), ("/garbled", 200), ("/nonsense", 502)])
async def test_an_application_that_breaks_off(lab: Lab, path: str, status: int) -> None:
    answer = await lab.ask(path, await lab.enter(lab.owner), **OWN)
    assert answer.status == status
    assert "9" not in answer.body


@pytest.mark.parametrize("path", ["/silent", "/half"])
async def test_container_that_ends_in_the_middle_is_shown_and_a_silent_one_waits_for_that(lab: Lab, path: str) -> None:
    cookie = await lab.enter(lab.owner)
    asking = asyncio.create_task(lab.ask(path, cookie, **OWN))
    await eventually(lambda: any(path in head for head in lab.application.heads))
    assert not asking.done()
    await lab.scheduler.hang_up()
    assert (await asking).status == 502


async def test_an_upgrade_to_something_else_passes_as_it_is_and_ends(lab: Lab) -> None:
    reader, writer = await lab.connect()
    writer.write(lab.asking("/nonsense", await lab.enter(lab.owner), **UPGRADE))
    async with asyncio.timeout(PATIENCE):
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        assert await reader.read() == b"\0\xff"
    writer.close()
    await eventually(lambda: not lab.application.open)


async def test_the_scheduler_is_asked_for_two_connections_to_one_container_at_a_time(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loop has decisions to make; and a container that takes no connection holds up no other's."""
    cookie = await lab.enter(lab.owner)
    asked, going, most = list[UUID](), set[object](), list[int]()
    answered = asyncio.Event()

    async def connect(home: Path, container: UUID, port: int) -> Any:
        asked.append(container)
        going.add(one := object())
        most.append(len(going))
        await answered.wait()
        going.remove(one)
        return await connect_to_port(home, container, port)

    monkeypatch.setattr(ports, "connect_to_port", connect)
    asking = [asyncio.create_task(lab.ask("/", cookie, **OWN)) for _ in range(8)]
    await eventually(lambda: len(asked) == 2)
    other = await sync_to_async(make_container)(lab.owner, "other")
    elsewhere = asyncio.create_task(ports.reached(other, 8888))
    await eventually(lambda: other.pk in asked)
    assert len(asked) == 3
    answered.set()
    (await elsewhere)[0].close()
    assert [(await each).status for each in asking] == [200] * 8
    assert max(most) == 3


async def test_an_answer_without_end_ends_with_the_browser(lab: Lab) -> None:
    reader, writer = await lab.connect()
    writer.write(lab.asking("/endless", await lab.enter(lab.owner), **OWN))
    async with asyncio.timeout(PATIENCE):
        await reader.readexactly(8 << 20)
    assert lab.application.open == 1
    writer.close()
    await eventually(lambda: not lab.application.open)


@pytest.mark.parametrize("path", ["/upgrade", "/silent", "/endless"])
async def test_a_laptop_that_slept_and_is_reset_leaves_nothing_open(lab: Lab, path: str) -> None:
    """Its connection says nothing until a new one of the same address is answered; then its kernel resets it."""
    cookie = await lab.enter(lab.owner)
    _, writer = await lab.connect()
    writer.write(lab.asking(path, cookie, **(UPGRADE if path == "/upgrade" else OWN)))
    await eventually(lambda: lab.application.open)
    assert (await lab.ask("/", cookie, **OWN)).status == 200
    await eventually(lambda: lab.application.open == 1)
    own = writer.get_extra_info("socket")
    own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    await eventually(lambda: not lab.application.open)


async def test_the_door_at_an_ipv6_address_knows_whom_a_proxy_names(lab: Lab, settings: Any) -> None:
    settings.GPUSHARE_TRUSTED_PROXIES = ["::1/128"]
    lab.door = AppsDoor()
    listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    async with await lab.door.open(listener):
        lab.address, lab.port = "::1", listener.getsockname()[1]
        there, browser = await lab.sent_back(lab.owner)
        path = there.removeprefix(f"https://{lab.host}")
        answer = await lab.ask(path, browser, **LINK, X_Forwarded_For="2001:db8::7")
        cookie = f"{COOKIE}={answer.cookies[COOKIE]}"
        assert (await lab.ask("/", cookie, **OWN)).status == 200
    assert (await AuditEntry.objects.aget(action="app-opened")).address == "2001:db8::7"


async def test_where_nothing_listens_a_person_is_informed(lab: Lab) -> None:
    lab.host = lab.host.replace("-8888.", "-9000.")
    there, browser = await lab.sent_back(lab.owner)
    answer = await lab.ask(there.removeprefix(f"https://{lab.host}"), browser, **LINK)
    cookie = f"{COOKIE}={answer.cookies[COOKIE]}"
    answer = await lab.ask("/", cookie, **LINK)
    assert answer.status == 502
    assert "Nothing listens on that port yet." in answer.body
    assert "<h1>" in answer.body


async def test_a_container_whose_memory_gave_way_is_waited_for(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "LOOK_AGAIN", 0.01)
    cookie = await lab.enter(lab.owner)
    lab.scheduler.awake = False
    asking = asyncio.create_task(lab.ask("/", cookie, **OWN))
    await eventually(lambda: len(lab.scheduler.asked) > 2)
    monkeypatch.setattr(ports, "waiting", Places(0))
    full = await lab.ask("/", cookie, **OWN)
    assert (full.status, dict(full.headers)["retry-after"]) == (503, "5")
    lab.scheduler.awake = True
    assert (await asking).status == 200


async def test_a_thousand_half_requests_keep_nobody_out(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab.door._doors, "_room", 50)  # 2,048; two ends of each are in this process
    cookie = await lab.enter(lab.owner)
    halves = []
    for _ in range(1000):
        reader, writer = await lab.connect()
        writer.write(b"GET / HTTP/1.1\r\nHost: " + lab.host.encode())
        halves.append((reader, writer))
        if len(halves) > 60:  # those have given way
            first, ended = halves.pop(0)
            async with asyncio.timeout(PATIENCE):
                with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                    await first.readexactly(1)
            ended.close()
    assert (await lab.ask("/", cookie, **OWN)).status == 200
    for _, writer in halves:
        writer.close()


async def test_many_browsers_by_one_connection_of_a_proxy_reach_each_its_own(lab: Lab) -> None:
    dora = await sync_to_async(make_user)("dora", Role.OPERATOR)
    cookies = [await lab.enter(lab.owner), await lab.enter(dora), f"{COOKIE}=nobody"]
    reader, writer = await lab.connect()
    for cookie, status in zip(cookies, (200, 200, 401), strict=True):
        writer.write(lab.asking("/", cookie, **OWN))
        head = await reader.readuntil(b"\r\n\r\n")
        assert int(head.split()[1]) == status
        if status == 200:
            length = next(int(line.split()[1]) for line in head.lower().splitlines() if line.startswith(b"content-len"))
            await reader.readexactly(length)
    writer.close()
    assert len(lab.scheduler.asked) == 2  # never the connection of somebody else


async def test_the_dashboard_without_applications_has_no_such_page(lab: Lab, settings: Any) -> None:
    settings.GPUSHARE_APPS = ""
    client = Client()
    await sync_to_async(client.force_login)(lab.owner)
    assert (await sync_to_async(client.get)("/apps/open/?at=lab")).status_code == 404
