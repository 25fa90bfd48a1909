"""Starts schedulers quickly: everything is imported once, and each one is a fork.

A line of standard input is how the next one is to be traced (see traced.py; empty: not at all). On standard output:
"began PID", and when it has ended "ended PID STATUS".
"""

import os
import signal
import sys
import threading
import traceback

import django
from django.core.management import call_command

from tests.faults import traced, troubled


def main() -> None:
    django.setup()
    for part in (troubled.tell_tasks, troubled.bad_database, troubled.failing_calls, troubled.nobody_computes,
                 troubled.often):  # fmt: skip
        part()
    from tests.faults import placing

    placing.of_files()
    import scheduler.management.commands.runscheduler
    import scheduler.worker  # noqa: F401  (and with it all else)

    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _be_a_scheduler(line.strip())
        print(f"began {pid}", flush=True)
        threading.Thread(target=_wait_for, args=(pid,)).start()


def _be_a_scheduler(how: str) -> None:
    status = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(2, 1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if how:
            traced.begin(how)
        call_command("runscheduler")
        status = 0
    except SystemExit as error:
        status = int(error.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _wait_for(pid: int) -> None:
    _, status = os.waitpid(pid, 0)
    print(f"ended {pid} {os.waitstatus_to_exitcode(status)}", flush=True)


if __name__ == "__main__":
    main()
