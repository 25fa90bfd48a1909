"""`top` in a terminal: looks again and again in one thread, kills in others, and draws at once whatever a key does."""

import os
import signal
import threading
from queue import Empty, SimpleQueue

from appliance.cli.client import Client, Json
from appliance.cli.errors import Problem
from appliance.cli.top.drawing import drawn, full
from appliance.cli.top.model import Mode, Model, Seen
from appliance.cli.top.terminal import Gone, Terminal

TICK = 1.0  # seconds: ages go on while nobody answers


def look(client: Client) -> Seen:
    """Raises Problem."""
    return {
        "gpus": list(client.each("gpus/")),
        "containers": list(client.containers()),
        "queue": list(client.each("queue/")),
    }


class Live:
    def __init__(self, client: Client, interval: float) -> None:
        self._client, self._interval = client, interval
        self._coloured = not os.environ.get("NO_COLOR")
        self._news: SimpleQueue[Seen | Problem | str] = SimpleQueue()
        self._over = threading.Event()
        self._again = threading.Event()  # look at once: something was done

    def run(self) -> None:
        """Until `q` or Ctrl-C. Any other signal ends the process, once the terminal is as it was. Raises Problem."""
        self._model = Model(look(self._client), self._client.now())  # what fails now is reported as by any command
        try:
            with Terminal() as self._terminal:
                threading.Thread(target=self._look, daemon=True).start()
                self._play()
        except Gone as gone:
            if gone.number != signal.SIGINT:
                signal.signal(gone.number, signal.SIG_DFL)
                os.kill(os.getpid(), gone.number)
        finally:
            self._over.set()

    def _play(self) -> None:
        while True:
            self._hear()
            self._draw()
            for key in self._terminal.wait(TICK):
                if key == "q" and self._model.mode is Mode.LOOKING:
                    return
                if container := self._model.press(key):
                    threading.Thread(target=self._kill, args=[container], daemon=True).start()

    def _draw(self) -> None:
        cells, lines = self._terminal.size()
        self._model.now = self._client.now()
        self._terminal.show([full(line, cells, coloured=self._coloured) for line in drawn(self._model, lines, cells)])

    def _hear(self) -> None:
        """What the other threads have found out."""
        while True:
            try:
                news = self._news.get_nowait()
            except Empty:
                return
            if isinstance(news, str):
                self._model.said = news
            elif not isinstance(news, Problem):
                self._model.seen, self._model.trouble = news, ""
            elif news.away:
                self._model.trouble = news.line()  # what is seen is old, and the screen says so
            else:
                raise news

    def _tell(self, news: Seen | Problem | str) -> None:
        if not self._over.is_set():
            self._news.put(news)
            self._terminal.wake()

    def _look(self) -> None:
        while not self._over.is_set():
            self._again.wait(self._interval)
            self._again.clear()
            try:
                self._tell(look(self._client))
            except Problem as problem:
                self._tell(problem)
            except RuntimeError:  # the connection was closed: this process ends
                return

    def _kill(self, container: Json) -> None:
        try:
            self._tell(f"{container['name']}: {self._client.act(container, 'kill', grace=0)['state']}")
        except Problem as problem:
            self._tell(f"{container['name']}: {problem.line()}")
        self._again.set()
