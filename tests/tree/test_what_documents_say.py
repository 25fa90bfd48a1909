"""What the documents list is what there is: options, fields, addresses, figures that stand in the code as well."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
import typer
from rest_framework.test import APIClient

from appliance import threads
from appliance.cli.main import app
from appliance.running import web_user
from scheduler.containers import swapping
from scheduler.core.people import heads
from scheduler.engines.docker import options
from scheduler.engines.docker.versions import HOLES
from scheduler.parts import PERIODS
from web.api.protocol.outcome import ERRORS
from web.console.frames import FROM_PEOPLE, PAYLOAD_LIMIT, WINDOW, FrameKind
from web.history import peaks, reports
from web.people import signin
from web.people.allowances import Allowed
from web.people.roles import Role
from web.services.issuing import ANSWER_WITHIN
from web.sizes import format_size
from web.spec import quotas
from web.spec.requests import FIELDS

ROOT = Path(__file__).parents[2]
COMMANDS = typer.main.get_command(app).commands
OPTIONS = {name: [param for param in command.params if param.param_type_name == "option"]
           for name, command in COMMANDS.items()}  # fmt: skip
EVERYWHERE = {"--json", "--help", "-h", "--install-completion", "--show-completion"}


def page(name: str) -> str:
    return (ROOT / name).read_text()


def rows(name: str, head: str) -> list[list[str]]:
    """The cells of the table that begins with this head."""
    _, _, table = page(name).partition(f"| {head} |")
    lines = re.match(r"[^\n]*\n\|[-| ]+\|\n((?:\|.*\n?)*)", table)[1].splitlines()
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] for line in lines]


def flags(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text))


def test_every_command_and_option_is_in_the_table_of_the_command_line():
    documented = {word: " ".join(cells) for cells in rows("docs/cli.md", "command")
            for word in re.findall(r"`([a-z][a-z-]*)", cells[0])}  # fmt: skip
    assert set(documented) == set(COMMANDS)
    missing = [
        f"{name} {param.opts[0]}"
        for name, params in OPTIONS.items()
        for param in params
        if not {*param.opts, *param.secondary_opts} & (flags(documented[name]) | EVERYWHERE)
    ]
    assert not missing


def test_every_option_that_the_table_of_the_command_line_names_exists():
    known = {each for params in OPTIONS.values() for param in params for each in (*param.opts, *param.secondary_opts)}
    assert {flag for cells in rows("docs/cli.md", "command") for cell in cells for flag in flags(cell)} <= known


def test_the_page_about_rest_names_the_addresses_and_the_errors_that_there_are():
    document = page("docs/rest.md")
    paths = [path.removeprefix("/api/v1/") for path in APIClient().get("/api/v1/schema/").json()["paths"]]
    known = {part for path in paths for part in path.split("/")} | {"schema", "docs"}
    named = re.findall(r"(?<![\w/.-])((?:[a-z-]+/)+)(?=[`?' ]|$)", document, re.MULTILINE)
    assert {part for path in named for part in path.strip("/").split("/")} <= known | {"ws", "api", "application"}
    assert {path.split("/")[0] for path in paths} <= {path.split("/")[0] for path in named}
    (errors,) = re.findall(r"^400 is .*?An answer", document, re.MULTILINE | re.DOTALL)
    assert {*map(int, re.findall(r"\b\d{3}\b", errors))} == {*ERRORS, 408, 413}


def test_the_allowances_and_the_roles_are_those_of_the_page_about_people():
    named = [word for cells in rows("docs/people.md", "field") for word in re.findall(r"`(\w+)`", cells[0])]
    assert named == [field.name for field in fields(Allowed)]
    assert [cells[0] for cells in rows("docs/people.md", "role")] == [role.group for role in Role]


def test_the_frames_of_a_console_are_those_of_the_page_about_rest():
    written = dict(pair for cells in rows("docs/rest.md", "kind") for pair in re.findall(r"(\d) (\w+)", cells[0]))
    public = FROM_PEOPLE | {FrameKind.OUTPUT, FrameKind.ERRORS, FrameKind.OPEN}
    assert {int(number): name.upper() for number, name in written.items()} == {int(kind): kind.name for kind in public}
    for figure in (PAYLOAD_LIMIT, WINDOW):
        assert format_size(figure) in page("docs/rest.md")


@pytest.mark.parametrize(
    ("name", "sentence", "held", "figure"),
    [
        ("docs/audit.md", "the scheduler brings it up to date each second", PERIODS["audit anchor"], 1),
        ("docs/cli.md", "from two runs of a command by any account", peaks.ENOUGH_OF_A_COMMAND, 2),
        ("docs/cli.md", "else from three of your runs of the same image", peaks.ENOUGH_OF_A_PERSON, 3),
        ("docs/deciding.md", "has waited ten minutes (less with a high priority", heads.PATIENCE, 600),
        ("docs/people.md", "After ten wrong passwords for a name from one address", signin.FAILURES, 10),
        ("docs/people.md", "that address has to wait five minutes", signin.PAUSE, 300),
        ("docs/people.md", "VRAM really held in the last seven days", reports.WEEK.days, 7),
        ("docs/production.md", "keeps sixteen of them for the requests to come", threads.KEPT, 16),
        ("docs/production.md", "else an unused number above 60,705", web_user.UNUSED, 60706),
        ("docs/rest.md", "at least 1 MiB, at most the container's `memory`", FIELDS["shm_size"].smallest, 2**20),
        ("docs/rest.md", "of which it is a part; 1 GiB", options.SHARED_MEMORY, 2**30),
        ("docs/rest.md", "else the image's label `com.nvidia.memory.limit`; else 1 GiB", quotas.DEFAULT, 2**30),
        ("docs/rest.md", "it is waited for up to 5 seconds", ANSWER_WITHIN, 5),
        ("docs/swapping.md", "is tried again every five seconds", swapping.AGAIN, 5),
    ],
)
def test_a_figure_that_a_page_tells_is_the_one_that_holds(name, sentence, held, figure):
    assert sentence in " ".join(page(name).split())
    assert held == figure


@pytest.mark.parametrize("hole", HOLES, ids=lambda hole: hole.name)
def test_the_releases_that_are_warned_about_are_those_of_the_page_about_security(hole):
    component = {"Engine": "Docker Engine"}.get(hole.component, hole.component)
    (row,) = re.findall(rf"^ *\| {component} \|.*", page("SECURITY.md"), re.MULTILINE)
    assert ".".join(map(str, hole.mended)) in row
    assert all(name in row for name in hole.name.split(", "))
