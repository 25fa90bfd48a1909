"""The entry point: the commands by name, and every error as one line with the right exit code."""

import inspect
import os
import signal
import sys
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from appliance import VERSION
from appliance.cli import actions, launch, managing, opening, output, planning, reports, views
from appliance.cli.errors import REFUSED, Problem

app = typer.Typer(
    name="gpushare",
    help="Run containers that share a few GPUs, each with a quota of GPU memory.",
    rich_markup_mode=None,  # plain help: rich alone would take longer to import than the help to read
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# What follows IMAGE belongs to the container, options too, as with docker run.
VERBATIM = {"allow_interspersed_args": False}
DOCKERS = {"start": "run", "show": "inspect"}  # what ours is called
OURS_AND_ITS = (["run"], ["attach"], ["exec"])  # their exit code is a program's, unless it is REFUSED


def _print_json(wanted: bool) -> None:
    output.as_json = output.as_json or wanted


Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.", callback=_print_json)]


def with_json(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with an option of which itself it knows nothing: what it shows is then JSON."""

    @wraps(command)
    def run(*, as_json: bool, **given: Any) -> None:
        command(**given)

    own = inspect.signature(command, eval_str=True)
    option = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json)
    run.__signature__ = own.replace(parameters=[*own.parameters.values(), option])  # type: ignore[attr-defined]
    run.__annotations__ = {**command.__annotations__, "as_json": Json}
    return run


app.command("run", context_settings=VERBATIM)(with_json(launch.run))
app.command("exec", context_settings=VERBATIM)(launch.execute)
app.command("open")(with_json(opening.open_))
for command in (
    actions.login,
    actions.logout,
    views.whoami,
    views.ps,
    views.stats,
    views.inspect,
    actions.logs,
    views.events,
    launch.attach,
    launch.wait,
    actions.pause,
    actions.resume,
    actions.stop,
    actions.move,
    actions.kill,
    actions.rm,
    actions.change,
    views.queue,
    planning.hold,
    planning.release,
    planning.cancel,
    planning.edit,
    planning.again,
    views.policy,
    views.forecast,
    views.gpus,
    managing.nodes,
    managing.notice,
    managing.reserve,
    managing.reservations,
    views.top,
    reports.report,
    reports.fairness,
    managing.people,
    managing.groups,
    managing.allowances,
    managing.tokens,
    managing.keys,
    managing.guests,
    managing.audit,
    actions.doctor,
):
    app.command({"change": "set"}.get(command.__name__))(with_json(command))
app.command("ssh-config")(with_json(managing.ssh_config))
app.command("peak", context_settings=VERBATIM)(with_json(reports.peak))


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"gpushare {VERSION}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Options before any command."""


def main() -> None:
    """Runs the command line and ends the process."""
    words = sys.argv[1:] or ["--help"]
    try:
        code = typer.main.get_command(app)(words, prog_name="gpushare", standalone_mode=False)
        sys.stdout.flush()
    except Problem as problem:
        code = _report(problem, words)
    except typer.TyperException as error:
        code = _usage(error, words)
    except (KeyboardInterrupt, typer.Abort):
        code = 128 + signal.SIGINT
    except BrokenPipeError:
        # Whoever read our output has gone. Python would complain once more when it flushes at its own end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 128 + signal.SIGPIPE
    sys.exit(code)


def _report(problem: Problem, words: list[str]) -> int:
    if output.as_json:
        output.note_json(**problem.as_json())
    else:
        output.note(problem.line())
    return problem.exit_code if words[:1] in OURS_AND_ITS else 1


def _usage(error: typer.TyperException, words: list[str]) -> int:
    """A word that is no option or command: one line, and where to read more."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "gpushare"
    message = error.format_message().replace("Value error, ", "")  # pydantic's words for any of ours
    if words[0] in DOCKERS:
        message = f"No such command {words[0]!r}. Did you mean {DOCKERS[words[0]]!r}?"
    _report(Problem(message, code="usage", hint=f"see {path} --help"), words)
    return REFUSED if words[:1] in OURS_AND_ITS else error.exit_code
