"""Closes what programs had a say in, apart from everything else: how long that takes may be theirs to choose.

The kernel closes a descriptor in the thread that drops the last reference to it, and that can wait: a TCP socket for as
long as its linger time, a file of somebody's own file system for as long as that likes. Descriptors come with messages
(SCM_RIGHTS), and those that nobody has received are dropped with the socket they wait in. So both end here, in a thread
for each container that has something to close; what one of them waits for holds up nothing of the others.

Even the scheduler's end does not wait for these threads.
"""

import _thread
import contextlib
import os
import threading
from collections import deque
from collections.abc import Iterable


class Closer:
    def __init__(self) -> None:
        self._waiting: dict[str, deque[int]] = {}  # container → descriptors; there while its thread is
        self._threadless: set[str] = set()  # of these, those for which the host let no thread be started yet
        self._lock = threading.Lock()

    def close(self, container: str, descriptors: Iterable[int]) -> None:
        """Soon; these numbers are the closer's from now on."""
        with self._lock:
            queue = self._waiting.get(container)
            if queue is not None:
                queue.extend(descriptors)
            elif descriptors := deque(descriptors):
                self._waiting[container] = descriptors
                self._threadless.add(container)
        self.start()

    def start(self) -> None:
        """The threads that are wanted, as far as the host has memory for them; to be called again and again."""
        with self._lock, contextlib.suppress(RuntimeError):
            for container in list(self._threadless):
                # Thread.start would wait here
                _thread.start_new_thread(self._run, (container, self._waiting[container]))
                self._threadless.discard(container)

    def waiting(self, container: str) -> int:
        """Descriptors of this container that are open still."""
        return len(self._waiting.get(container, ()))

    def _run(self, container: str, queue: deque[int]) -> None:
        while True:
            with contextlib.suppress(OSError):  # of whatever file it was; the number is free all the same
                os.close(queue[0])
            with self._lock:
                queue.popleft()
                if not queue:
                    del self._waiting[container]
                    return
