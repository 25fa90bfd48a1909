"""`manual.py`: gpushare's man page, from the command line itself. `manual.py --completion SHELL`: its completion."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import typer

from appliance import VERSION
from appliance.cli.main import app

# What no command says of itself.
FILES = (
    ("~/.config/gpushare/login.json", "Address and token of `gpushare login`."),
    ("/etc/gpushare/gpushare.env", "On the appliance's own host: its settings."),
)


def page() -> str:
    """Of troff's macros `man`, as man(7) has them."""
    group = typer.main.get_command(app)
    return "\n".join(_page(group)) + "\n"


def _page(group: Any) -> Iterator[str]:
    yield f'.TH GPUSHARE 1 "" "gpushare {VERSION}"'
    yield ".SH NAME\ngpushare \\- containers that share a few GPUs"
    yield ".SH SYNOPSIS\n.B gpushare\n.I COMMAND\n[options]"
    yield f".SH DESCRIPTION\n{_text(group.help)}"
    yield ".SH COMMANDS"
    for name, command in group.commands.items():
        if command.hidden:
            continue
        context = typer.Context(command, info_name=name)
        yield f".SS gpushare {_text(name)} {_text(' '.join(command.collect_usage_pieces(context)))}"
        yield _text(command.help)
        for option in command.get_params(context):
            if record := option.get_help_record(context):
                yield f".TP\n.B {_text(record[0])}\n{_text(record[1])}"
    yield ".SH FILES"
    for path, meaning in FILES:
        yield f".TP\n.I {_text(path)}\n{_text(meaning)}"


def _text(words: str | None) -> str:
    """As troff shows it, unchanged: no escape, and no request at the beginning of a line."""
    lines = (words or "").replace("\\", "\\e").replace("-", "\\-").splitlines()
    return "\n".join(f"\\&{line.strip()}" if line.strip() else ".PP" for line in lines)


def completion(shell: str) -> str:
    """Typer's, which asks the program itself at each key: it cannot go stale either."""
    from typer._completion_shared import get_completion_script

    return get_completion_script(prog_name="gpushare", complete_var="_GPUSHARE_COMPLETE", shell=shell) + "\n"


if __name__ == "__main__":
    sys.stdout.write(completion(sys.argv[2]) if sys.argv[1:2] == ["--completion"] else page())
