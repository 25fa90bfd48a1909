"""The command `top`: live in a terminal, one look where nobody looks at a screen."""

import os
import shutil
import sys
import time
from contextlib import suppress
from datetime import datetime

from appliance.cli import output
from appliance.cli.client import Client
from appliance.cli.rows import QUEUE_HEADS, container_rows, queue_row
from appliance.cli.text import table
from appliance.cli.top.drawing import ansi, bars_of, counts
from appliance.cli.top.live import Live, look
from appliance.cli.top.model import Seen

WIDE = 160  # cells, where there is no terminal to ask


def watch(client: Client, *, once: bool, interval: float) -> None:
    """Until somebody leaves it. Raises Problem."""
    live = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    with suppress(KeyboardInterrupt):
        if live and not once and not output.as_json:
            Live(client, interval).run()
            return
        while True:
            seen = look(client)
            if output.as_json:
                output.show_json(seen)
            else:
                print(_summary(seen, client.now()), flush=True)
            if once or not output.as_json:
                return
            time.sleep(interval)


def _summary(seen: Seen, now: datetime) -> str:
    """As `gpus`, `ps` and `queue` tell it: every name whole, however long."""
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    cells = shutil.get_terminal_size((WIDE, 0)).columns
    parts = [f"{now.astimezone():%H:%M:%S}  {counts(seen)}"]
    parts += [ansi(bar, coloured=coloured) for bar in bars_of(seen, cells)]
    if seen["containers"]:
        parts.append(table(*container_rows(seen["containers"], now, seen["gpus"])))
    if seen["queue"]:
        parts.append(table(QUEUE_HEADS, [queue_row(each, now) for each in seen["queue"]]))
    return "\n".join(parts)
