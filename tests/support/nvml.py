"""NVML's word on who computes, as an H200's driver (580) was seen to give it; see scheduler/gpus/sampling.py."""

from types import SimpleNamespace

import pynvml


class Nvml:
    """Looks at a card now and then, and names whom it sees.

    Asked for what was since some time it gives one sample of each whom it saw since: its part of all looks, and when it
    was seen last.
    """

    def __init__(self, seen: dict[int, int] | None = None) -> None:
        self.seen = seen or {}  # microseconds → who was there, 0: nobody
        self.now = 0  # of looks after that it does not know yet

    def __call__(self, since: int) -> list[SimpleNamespace]:
        looks = {at: pid for at, pid in self.seen.items() if since < at <= self.now}
        whom = {pid for pid in looks.values() if pid}
        if not whom:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return [
            SimpleNamespace(
                pid=pid,
                timeStamp=max(at for at, who in looks.items() if who == pid),
                smUtil=100 * list(looks.values()).count(pid) // len(looks),
            )
            for pid in whom
        ]
