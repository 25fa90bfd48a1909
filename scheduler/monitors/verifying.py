"""Has the audit log verified, once a day, by a process of its own: no decision waits for it."""

import asyncio
import logging
import sys

from django.conf import settings
from django.db import DatabaseError

from scheduler import clock
from scheduler.store import Store
from web.audit import verified

log = logging.getLogger(__name__)

PERIOD = 86400.0  # seconds; a look reads the whole log, at the lowest priority
NOT_AT_ONCE = 60.0  # seconds after a start: others have more to do then
AGAIN = 3600.0  # seconds after one that came to no result
KINDNESS = 19  # of nice(1)


class Verifying:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def run(self) -> None:
        if settings.GPUSHARE_AUDIT_KEY:  # a node that joined has no key but its own
            await asyncio.Event().wait()
        await asyncio.sleep(min(NOT_AT_ONCE, PERIOD))
        while True:
            try:
                age = await self._age()
                if age >= PERIOD:
                    await self._verify()
                    if (age := await self._age()) >= PERIOD:  # it was ended, or had no database
                        age = PERIOD - min(AGAIN, PERIOD)
            except (DatabaseError, OSError) as error:
                log.warning("the audit log could not be verified, trying again: %s", error)
                age = PERIOD - min(AGAIN, PERIOD)
            await asyncio.sleep(max(0.0, PERIOD - age))

    async def _age(self) -> float:
        """Seconds since the last result; PERIOD where there is none."""
        last = await self._store.ask(verified.last)
        return (clock.now() - last[0]).total_seconds() if last else PERIOD

    async def _verify(self) -> None:
        """Notes what it finds; the log says the same."""
        command = ["nice", "-n", str(KINDNESS), sys.executable, str(settings.BASE_DIR / "manage.py"), "verify_audit"]
        child = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        try:
            _, said = await child.communicate()
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        if child.returncode:
            log.error("the audit log: %s", said.decode(errors="replace").strip()[-2000:])
