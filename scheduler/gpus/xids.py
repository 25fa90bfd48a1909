"""The critical errors that cards report by NVML's events, as XIDs: numbers in NVIDIA's list of what went wrong.

https://docs.nvidia.com/deploy/xid-errors/
"""

import logging
from collections.abc import Mapping
from typing import Any

import pynvml

log = logging.getLogger(__name__)

# A program of somebody's did it, and the card goes on: an exception in a kernel, a page fault, a channel that was torn
# down, the video engine, a context switch that took too long. NVIDIA's own device plugin passes over the same.
OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 109})
MOST = 100  # reported at one look


class Xids:
    """Listens from its making on. A card or a driver that reports none is as good as one without errors."""

    def __init__(self, handles: Mapping[str, Any]) -> None:
        self._set: Any = None
        try:
            self._set = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as error:
            log.warning("NVML tells no errors of cards: %s", error)
            return
        for uuid, handle in handles.items():
            try:
                pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._set)
            except pynvml.NVMLError as error:
                log.info("GPU %s tells no critical errors: %s", uuid, error)

    def take(self) -> dict[str, int]:
        """The last one of each card since the last look that is not a program's own."""
        found: dict[str, int] = {}
        for _ in range(MOST if self._set is not None else 0):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, 0)
                uuid = pynvml.nvmlDeviceGetUUID(event.device)
            except pynvml.NVMLError as error:
                if not isinstance(error, pynvml.NVMLError_Timeout):
                    log.warning("NVML does not tell errors of cards now: %s", error)
                break
            log.error("GPU %s reports XID %d", uuid, event.eventData)
            if event.eventData not in OF_PROGRAMS:
                found[uuid] = int(event.eventData)
        return found

    def close(self) -> None:
        if self._set is not None:
            pynvml.nvmlEventSetFree(self._set)
