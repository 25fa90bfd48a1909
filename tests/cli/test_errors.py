"""One line that says what to do, and an exit code that scripts can use."""

import json
import socket

import pytest
from websockets.datastructures import Headers
from websockets.exceptions import InvalidStatus
from websockets.http11 import Response

from appliance.cli.errors import Problem, from_answer, unreachable
from tests.cli.support import gpushare


@pytest.fixture
def nowhere():
    """An address at which nobody listens, for as long as the test runs."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield {"GPUSHARE_URL": f"http://127.0.0.1:{taken.getsockname()[1]}", "GPUSHARE_TOKEN": "gps_test"}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["ps"], 1, "no answer from http://127.0.0.1:"),
        (["run", "local", "true"], 125, "no answer from http://127.0.0.1:"),
        (["run", "-it", "local", "sh"], 125, "input is not a terminal: use -i without -t"),
        (["run", "--ttl", "soon", "local"], 125, "--ttl: 'soon' is not a duration: write 90s, 15m, 2h or 1h30m"),
        (["run", "--no-such", "local"], 125, "see gpushare run --help"),
        (["run"], 125, "see gpushare run --help"),
        (["run", "--cpus", "many", "local"], 125, "see gpushare run --help"),
        (["gpus", "--compute", "x"], 2, "Invalid value for '--compute': 'x' is not one of 'turns', 'shared': see "),
        (
            ["set", "train"],
            1,
            "nothing to set: give --gpu-memory SIZE, --priority N, --compute-weight N or --compute-limit PERCENT",
        ),
        (["pause"], 2, "see gpushare pause --help"),
        (["no-such-command"], 2, "see gpushare --help"),
        (["rnu"], 2, "Did you mean 'run'? see gpushare --help"),
        (["start", "x"], 2, "gpushare: No such command 'start'. Did you mean 'run'? see gpushare --help"),
        (["show"], 2, "Did you mean 'inspect'?"),
        (["people", "ada", "--on", "--off"], 1, "--on excludes --off"),
        (["tokens", "--days", "3"], 1, "--read-only and --days go with --create NAME"),
    ],
)
def test_errors_are_one_line_and_docker_like_exit_codes(words, code, said, nowhere):
    done = gpushare(*words, environ=nowhere)
    assert done.returncode == code
    assert done.stdout == ""
    assert done.stderr.startswith("gpushare: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_errors_are_json_where_json_was_asked_for(nowhere):
    done = gpushare("ps", "--json", environ=nowhere)
    assert done.returncode == 1
    assert json.loads(done.stderr)["error"]["code"] == "unreachable"


def test_a_json_option_of_the_containers_own_command_is_not_ours(nowhere):
    done = gpushare("run", "local", "program", "--json", environ=nowhere)
    assert done.returncode == 125
    assert done.stderr.startswith("gpushare: no answer")


def test_not_logged_in_says_what_to_do(tmp_path):
    environ = {
        "GPUSHARE_CONFIG": str(tmp_path),
        "GPUSHARE_HOME": str(tmp_path),
        "GPUSHARE_URL": "",
        "GPUSHARE_TOKEN": "",
    }
    done = gpushare("ps", environ=environ)
    assert (done.returncode, done.stderr) == (1, "gpushare: not logged in: gpushare login URL, or set GPUSHARE_TOKEN\n")


def test_a_refusal_names_the_option_and_not_the_field():
    body = {
        "error": {"code": "over_capacity", "message": "9 GiB is more than\nit can ever give.", "field": "gpu_memory"}
    }
    assert from_answer(400, body).line() == "--gpu-memory: 9 GiB is more than it can ever give"
    nested = {"error": {"code": "forbidden", "message": "Not allowed.", "field": "env.LD_PRELOAD"}}
    assert from_answer(400, nested).line() == "-e: Not allowed"


def test_refusals_that_time_or_a_login_can_mend_say_so():
    body = {"error": {"code": "x", "message": "No."}}
    assert from_answer(401, body).line() == "No: log in with: gpushare login"
    assert from_answer(429, body, "7").line() == "No: try again in 7 s"


def test_what_a_refusal_says_itself_is_not_said_again():
    body = {"error": {"code": "x", "message": "Too many failed attempts. Try again in 7 seconds."}}
    assert from_answer(429, body, "7").line() == "Too many failed attempts. Try again in 7 seconds"
    body = {"error": {"code": "bad_token", "message": "This token is not known; sign in again."}}
    assert from_answer(401, body).line() == "This token is not known; sign in again: gpushare login"


def test_https_to_a_port_without_tls_says_which_address_is_meant():
    broke = OSError("[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)")
    assert (
        unreachable("https://gpu:8000", broke)
        .line()
        .endswith("the server does not speak TLS. Without TLS: gpushare login http://gpu:8000")
    )


@pytest.mark.parametrize(
    ("kind", "line"),
    [("text/plain; charset=utf-8", "Close one: try again in 5 s"), ("text/html", "the server answered 429 without")],
)
def test_a_handshake_that_is_refused_tells_the_servers_reason(kind, line):
    headers = Headers({"content-type": kind, "retry-after": "5"})
    problem = unreachable("https://gpu", InvalidStatus(Response(429, "Too Many", headers, b"Close one.\n")))
    assert problem.line().startswith(line)
    assert (problem.status, problem.away) == (429, True)


@pytest.mark.parametrize("body", [None, [], "text", {"detail": "not ours"}, {"error": "text"}])
def test_an_answer_beside_the_contract_is_reported_as_such(body):
    problem = from_answer(502, body)
    assert (problem.code, problem.status, problem.away) == ("unexpected", 502, True)
    assert isinstance(problem, Problem)


@pytest.mark.parametrize(("code", "exit_code"), [("cannot_start", 127), ("cannot_execute", 126), ("no_command", 125)])
def test_exit_code_of_a_refused_launch_is_dockers(code, exit_code):
    assert from_answer(400, {"error": {"code": code, "message": "x"}}).exit_code == exit_code
