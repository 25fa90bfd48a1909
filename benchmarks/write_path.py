"""Whether the record keeps up: allocation events through the scheduler's own store, into the hash chain.

    python -m benchmarks.write_path [EVENTS_PER_SECOND] [SECONDS] [sqlite|postgres]

Meanwhile a second process writes audit entries, as the web side does. Shown are the events that were written, how far
the store fell behind, what was refused, and by how much the scheduler's event loop was late, with and without the
load: a decision is made in that loop. The bar: 2,000 a second for a minute, without one refusal.
"""

import asyncio
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from typing import Any

TICK = 0.005  # seconds between two looks at how late the loop is

_OTHER_WRITER = """
import time, django; django.setup()
from web import audit
while True:
    audit.record("somebody", "sign-in"); time.sleep(0.05)
"""


def main(rate: int = 2000, seconds: int = 60, database: str = "sqlite") -> None:
    with ExitStack() as stack:
        os.environ["GPUSHARE_HOME"] = stack.enter_context(tempfile.TemporaryDirectory(prefix="gpushare-bench-"))
        os.environ["DJANGO_SETTINGS_MODULE"] = "appliance.settings"
        if database == "postgres":
            from tests.support.postgres import running_postgres

            os.environ["DATABASE_URL"] = stack.enter_context(running_postgres()).url
        containers = _prepare()
        other = subprocess.Popen([sys.executable, "-c", _OTHER_WRITER])
        stack.callback(other.wait)
        stack.callback(other.kill)
        asyncio.run(_write(rate, seconds, containers))
        assert other.poll() is None, "the other writer was refused"
        _check()


def _prepare() -> list[str]:
    import django

    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command

    from web.models import Container, Gpu, Node

    call_command("migrate", verbosity=0)
    node = Node.objects.create(name="bench")
    Gpu.objects.create(node=node, uuid="GPU-0", index=0, name="card", total=1 << 33, capacity=1 << 33)
    owner = User.objects.create(username="ada")
    return [str(Container.objects.create(owner=owner, name=f"c{n}", image="local").pk) for n in range(20)]


async def _write(rate: int, seconds: int, containers: list[str]) -> None:
    from scheduler.store import Store
    from scheduler.worker import LOOP_WAITS

    sys.setswitchinterval(LOOP_WAITS)  # as the scheduler does,
    gc.freeze()  # and its command
    store = Store("bench")
    store._here.gpus["GPU-0"] = 1
    refused: list[BaseException] = []
    store.flush = _noting(store.flush, refused)  # type: ignore[method-assign]
    idle = await _lateness(3.0)
    running = asyncio.create_task(store.run())
    late = asyncio.create_task(_lateness(float(seconds)))
    begun, made, behind = time.monotonic(), 0, 0
    while (passed := time.monotonic() - begun) < seconds:
        for number in range(made, int(passed * rate)):
            store.event("accepted", containers[number % 20], gpu="GPU-0", pid=7, size=4096, used_after=number)
        made, behind = int(passed * rate), max(behind, len(store._events))
        await asyncio.sleep(0.01)
    await store.flush()
    took = time.monotonic() - begun
    running.cancel()
    await store.close()
    print(f"{made} events in {took:.1f} s ({made / took:.0f}/s), at most {behind} waiting, {len(refused)} refusals")
    for name, found in (("idle", idle), ("loaded", await late)):
        cuts = statistics.quantiles(found, n=1000)
        print(f"the loop was late, {name}: median {cuts[499] * 1e3:.2f} ms, 99 % {cuts[989] * 1e3:.2f} ms")


def _noting(flush: Any, refused: list[BaseException]) -> Any:
    async def noted() -> None:
        try:
            await flush()
        except Exception as error:
            refused.append(error)
            raise

    return noted


async def _lateness(seconds: float) -> list[float]:
    found, end = [], time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        await asyncio.sleep(TICK)
        found.append(time.monotonic() - now - TICK)
    return found


def _check() -> None:
    from web import audit

    begun = time.monotonic()
    sound, faults = audit.verify()
    print(f"the chain of {sound} seals verifies in {time.monotonic() - begun:.1f} s; faults: {len(faults)}")
    assert not faults


if __name__ == "__main__":
    words = sys.argv[1:]
    main(int(words[0]) if words else 2000, int(words[1]) if words[1:] else 60, words[2] if words[2:] else "sqlite")
