"""Every field of a launch, one by one: recorded, answered, shown, launched again, and written as a command."""

import json
import re
import shlex
from html import unescape

import pytest
import typer
from django.conf import settings
from django.http import QueryDict
from django.utils import timezone

from appliance.cli import launch as command_line
from appliance.cli.main import app
from tests.support.appliance import ROOT
from tests.support.launches import GIVEN
from tests.support.people import signed_in
from web.models import AuditEntry, Container
from web.pages import launch_form
from web.services import steering
from web.spec.requests import FIELDS, PRIVATE, LaunchSpec, asked_for

every_field = pytest.mark.parametrize("field", FIELDS)


@pytest.fixture(autouse=True)
def _ports(settings) -> None:
    settings.GPUSHARE_PORTS_WITHOUT_TLS = True


def with_only(field: str) -> dict[str, object]:
    return {"image": "local", field: GIVEN[field]}


def posted(values: dict[str, object]) -> QueryDict:
    """As a browser sends a form of these values: what is empty or not ticked says nothing."""
    form = QueryDict(mutable=True)
    for name, value in values.items():
        form.setlist(name, value if isinstance(value, list) else [str(value)])
    return form


def test_the_sample_gives_every_field():
    assert set(GIVEN) == set(FIELDS)


@every_field
@pytest.mark.django_db
def test_what_was_asked_for_is_recorded_answered_and_shown(client, ada, gpu, field):
    container = steering.launch(ada, with_only(field)).container
    container.refresh_from_db()
    assert ({"name": container.name} | asked_for(container, private=True))[field] == GIVEN[field]

    answer = client.get(f"/api/v1/containers/{container.pk}/").json()
    recorded = {"gpus": {"gpu_count": 1}, "env": {"env": sorted(GIVEN["env"])}}.get(field, {field: GIVEN[field]})
    assert {name: answer[name] for name in recorded} == recorded
    assert field in AuditEntry.objects.get(action="launch").detail

    page = signed_in(ada).get(f"/containers/{container.pk}/").content.decode()
    shown = dict(re.findall(r"<dt><code>(\w+)</code></dt>\s*<dd>(.*?)</dd>", page, re.DOTALL))
    text = GIVEN["name"] if field == "name" else launch_form.text_of(field, GIVEN[field])
    where = page if field == "name" else shown[field]
    assert text in re.sub(r"<br */?>", "\n", unescape(where))


@every_field
@pytest.mark.django_db
def test_launching_again_asks_for_the_same(ada, gpu, field):
    first = steering.launch(ada, with_only(field)).container
    first.refresh_from_db()
    spec = launch_form.spec_of(posted(launch_form.again(first, private=True)))
    Container.objects.all().delete()
    second = steering.launch(ada, spec).container
    second.refresh_from_db()
    assert asked_for(second, private=True) == asked_for(first, private=True)


@pytest.mark.django_db
def test_launching_again_shows_nothing_private_to_others(ada, gpu):
    container = steering.launch(ada, GIVEN).container
    assert not launch_form.again(container, private=False).keys() & set(PRIVATE)


@every_field
def test_the_command_line_sends_what_the_form_shows_as_a_command(monkeypatch, field):
    spec = with_only(field)
    sent = []

    class Server:
        def launch(self, body, pending):
            sent.append(body)
            return {"id": "1"}

        def each(self, path, **params):
            return [{"uuid": "GPU-0", "index": 0, "node": "host"}]

    monkeypatch.setattr(command_line, "connect", Server)
    _, run, *words = shlex.split(launch_form.command_line(spec))
    typer.main.get_command(app)([run, "--detach", *words], standalone_mode=False)
    assert LaunchSpec.parse(json.loads(json.dumps(sent[0]))) == LaunchSpec.parse(spec)


def test_the_form_shows_both_commands(ada_in_browser, gpu):
    form = {"image": "local", "command": "echo $HOME", "gpu_memory": "2GiB", "env": "A=b c"}
    answer = ada_in_browser.post("/launch/body/", form).json()
    assert answer["cli"] == "gpushare run --gpu-memory 2GiB -e 'A=b c' local echo '$HOME'"
    assert answer["body"] == {"image": "local", "command": ["echo", "$HOME"], "gpu_memory": "2GiB", "env": {"A": "b c"}}


def test_the_form_says_from_which_launch_it_started(ada, ada_in_browser, gpu):
    """Else "an empty form" seemed chosen already, and could not be: choosing it changed nothing."""
    steering.launch(ada, {"image": "local", "command": ["sleep", "1"]})
    started = steering.launch(ada, {"image": "local", "command": ["sleep", "2"]}).container
    Container.objects.update(started_at=timezone.now())

    def chosen(address: str) -> list[str]:
        page = ada_in_browser.get(address).content.decode()
        return re.findall(r"<option [^>]*selected[^>]*>[^<]*: local (.*?)</option>", page)

    assert chosen(f"/launch/?from={started.pk}") == ["sleep 2"]
    assert chosen("/launch/") == []


def test_the_form_starts_from_no_launch_that_never_started(ada, ada_in_browser, gpu):
    """A mistyped image was offered for ever."""
    mistyped = steering.launch(ada, {"image": "locall", "command": ["sleep", "1"]}).container
    steering.launch(ada, {"image": "local", "command": ["sleep", "2"]})
    Container.objects.exclude(pk=mistyped.pk).update(started_at=timezone.now())

    def offered(address: str) -> list[str]:
        page = ada_in_browser.get(address).content.decode()
        return re.findall(r"<option [^>]*>[^<]*: (locall?) sleep .</option>", page)

    assert offered("/launch/") == ["local"]
    assert offered(f"/launch/?from={mistyped.pk}") == ["local", "locall"]


def test_a_quota_to_the_byte_is_shown_and_launched_again_to_the_byte(ada, ada_in_browser, gpu):
    """716.8 MiB is what people read, and no whole number of bytes."""
    started = steering.launch(ada, {"image": "local", "command": ["true"], "gpu_memory": 751619277}).container
    for address in (f"/containers/{started.pk}/", f"/launch/?from={started.pk}"):
        assert "751619277" in ada_in_browser.get(address).content.decode()


@pytest.fixture
def ada_in_browser(ada):
    return signed_in(ada)


@every_field
def test_the_documents_name_it(field):
    rest = (ROOT / "docs" / "rest.md").read_text()
    (run,) = re.findall(r"^\| `run IMAGE.*$", (ROOT / "docs" / "cli.md").read_text(), re.MULTILINE)
    rows = [cell for line in rest.splitlines() if (cell := line.split("|")[1] if line.startswith("| `") else "")]
    assert any(f"`{field}`" in row for row in rows)
    assert all(word in run for word in settings.GPUSHARE_FLAG(field).split("/"))
