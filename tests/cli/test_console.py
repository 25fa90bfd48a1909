"""`gpushare run -it` on a real Docker engine, in a real terminal."""

import subprocess
from collections.abc import Iterator

import docker
import pytest

from tests.cli.support import ENTRY, environment, gpushare
from tests.support.appliance import Appliance
from tests.support.dockerd import IMAGE, Dockerd, docker_api, dockerd
from tests.support.terminal import Terminal

__all__ = ["docker_api", "dockerd"]

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def appliance(dockerd: Dockerd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    home = tmp_path_factory.mktemp("console") / "var"
    running = Appliance(home, GPUSHARE_ENGINE="docker", GPUSHARE_DOCKER_HOST=dockerd.address)
    yield running
    running.close()


def terminal(appliance: Appliance, *words: str) -> Terminal:
    return Terminal([*ENTRY, *words], environment(appliance.environ))


def shell(appliance: Appliance, name: str) -> Terminal:
    return terminal(appliance, "run", "-it", "--rm", "--name", name, IMAGE, "sh")


def test_a_shell_has_the_terminals_size_follows_it_and_gives_its_exit_code(appliance: Appliance) -> None:
    with shell(appliance, "shell") as it:
        it.until("# ")
        assert it.settings() != it.before
        it.type("stty size\r")
        it.until("33 111\r\n")
        it.resize(44, 99)
        it.type("while [ \"$(stty size)\" != '44 99' ]; do sleep 0.1; done; echo follow''ed\r")
        it.until("followed\r\n")
        it.type("exit 7\r")
        assert it.exit_code() == 7
        assert it.settings() == it.before
        assert "gpushare:" not in it.seen.decode()


def test_ctrl_c_interrupts_what_runs_inside_and_nothing_else(appliance: Appliance) -> None:
    with shell(appliance, "interrupted") as it:
        it.until("# ")
        it.type('sh -c \'trap "exit 9" INT; echo beg""un; while :; do sleep 0.1; done\'\r')
        it.until("begun")
        it.type("\x03")
        it.until("# ")
        it.type("exit $?\r")
        assert it.exit_code() == 9


def test_remarks_begin_lines_of_their_own_in_a_raw_terminal(appliance: Appliance) -> None:
    with shell(appliance, "frozen") as it:
        it.until("# ")
        gpushare("pause", "frozen", environ=appliance.environ)
        it.until("\r\ngpushare: frozen is paused; to resume it: gpushare resume frozen\r\n")
        gpushare("resume", "frozen", environ=appliance.environ)
        it.until("\r\ngpushare: frozen continues\r\n")
        it.type("exit\r")
        assert it.exit_code() == 0


def test_a_terminal_is_left_and_come_back_to(appliance: Appliance) -> None:
    with shell(appliance, "left") as it:
        it.until("# ")
        it.type("\x10\x11")
        assert it.exit_code() == 0
        assert it.settings() == it.before
        assert "gpushare: left left; to return: gpushare attach left\r\n" in it.seen.decode()
    with terminal(appliance, "attach", "left") as it:
        it.type("stty size; exit 4\r")
        it.until("33 111")
        assert it.exit_code() == 4


def test_a_terminal_without_a_keyboard_has_its_size_and_ctrl_c_stops_it(appliance: Appliance) -> None:
    stay = "while :; do sleep 0.05; done"
    wait = "while [ \"$(stty size)\" != '33 111' ]; do sleep 0.1; done"
    with terminal(appliance, "run", "-t", IMAGE, "sh", "-c", f"trap 'exit 6' TERM; {wait}; echo sized; {stay}") as it:
        it.until("sized\r")
        it.type("\x03")
        it.until("gpushare: stopping ")
        assert it.exit_code() == 6


def test_errors_stay_apart_from_output(appliance: Appliance) -> None:
    script = "read word; echo out $word; echo err $word >&2; exit 5"
    done = gpushare("run", "-i", IMAGE, "sh", "-c", script, environ=appliance.environ, stdin="this\nthat\n")
    assert (done.returncode, done.stdout, done.stderr) == (5, "out this\n", "err this\n")


def test_programs_that_read_late_on_either_side_get_all_of_it(appliance: Appliance) -> None:
    """More than fits anywhere on the way."""
    run = " ".join(f"'{word}'" for word in [*ENTRY, "run", "-i", "--rm", IMAGE, "sh", "-c", "sleep 2; cat"])
    pipeline = f"head -c 5000000 /dev/zero | {run} | (sleep 4; wc -c)"
    done = subprocess.run(["sh", "-c", pipeline], env=environment(appliance.environ), capture_output=True, timeout=60)
    assert (done.stdout, done.stderr) == (b"5000000\n", b"")


def test_a_broken_connection_comes_back_with_what_was_typed_meanwhile(appliance: Appliance) -> None:
    with shell(appliance, "broken") as it:
        it.until("# ")
        it.type('word=still; echo rea""dy\r')
        it.until("ready\r\n")
        appliance.crash()
        it.until("gpushare: the connection to broken broke; reconnecting. Ctrl-P Ctrl-Q leaves\r\n")
        it.type("echo $word $((1 + 1))\r")
        appliance.start()
        it.until("gpushare: connected again\r\n")
        it.until("still 2\r\n")
        it.type("stty size; exit 3\r")
        it.until("33 111\r\n")
        assert it.exit_code() == 3
        assert it.settings() == it.before


def test_a_program_that_fills_the_screen_draws_it_anew_when_the_connection_is_back(appliance: Appliance) -> None:
    with shell(appliance, "drawing") as it:
        it.until("# ")
        it.type('exec sh -c \'trap "echo drawn anew" WINCH; echo beg""un; while :; do sleep 0.1; done\'\r')
        it.until("begun\r\n")
        appliance.crash()
        it.until("reconnecting.")
        appliance.start()
        it.until("drawn anew\r\n")
        it.type("\x03")
        it.exit_code()


def test_what_ends_while_the_connection_is_broken_has_its_exit_code_reported(
    appliance: Appliance, docker_api: docker.APIClient
) -> None:
    with shell(appliance, "ends") as it:
        it.until("# ")
        it.type("trap 'exit 5' USR1; echo ready to en''d; while :; do sleep 0.1; done\r")
        it.until("ready to end\r\n")
        engine_id = appliance.named("ends")["engine_id"]
        appliance.crash()
        it.until("reconnecting.")
        docker_api.kill(engine_id, "USR1")
        docker_api.wait(engine_id)
        appliance.start()
        assert it.exit_code() == 5
        assert "ends has ended; its output: gpushare logs ends" in it.seen.decode()
        assert it.settings() == it.before


def test_the_terminal_is_whole_again_after_leaving_a_broken_connection(appliance: Appliance) -> None:
    with shell(appliance, "left-broken") as it:
        it.until("# ")
        assert it.settings() != it.before
        appliance.crash()
        it.until("reconnecting.")
        it.type("\x10\x11")
        assert it.exit_code() == 0
        assert it.settings() == it.before
    appliance.start()
    with terminal(appliance, "attach", "left-broken") as it:
        it.type("echo still $((1 + 1)); exit\r")
        it.until("still 2\r\n")
        assert it.exit_code() == 0


def test_without_a_terminal_t_says_so(appliance: Appliance) -> None:
    done = gpushare("run", "-it", IMAGE, "sh", environ=appliance.environ)
    assert done.returncode == 125
    assert done.stderr == "gpushare: input is not a terminal: use -i without -t\n"
