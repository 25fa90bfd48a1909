"""REST, as the commands need it: one connection, errors as `Problem`, pages as one list, containers by name."""

from __future__ import annotations

import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from appliance import proxies
from appliance.cli import login
from appliance.cli.errors import TOO_MANY, Problem, from_answer, unreachable

# httpx imports its own command line, and with it rich and pygments, if it can: 0.3 s that nobody here has a use for.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]

if TYPE_CHECKING:
    import httpx

Json = dict[str, Any]

Pending = Callable[[Json], None]
"""Called with a command, as often as it was looked at, while it is not done yet."""

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
START = re.compile(r"[0-9a-f-]{4,35}", re.IGNORECASE)  # shorter ones are rather mistyped names

PAGE = 1000  # the most that the appliance gives at once
CONNECT = 5.0  # seconds
ANSWER = 30.0  # seconds; the appliance itself waits at most 5 for what a command leads to
SETTLE = 600.0  # seconds to follow a command that takes longer, such as the pull of an image
BUSY = 20.0  # seconds in which what was too much at once is tried again, as often as the appliance says
RETRIES = (0.2, 0.5, 1.0)  # seconds before each further try of a launch whose answer was lost


class Client:
    """Speaks to one appliance. Thread-safe. Every method raises `Problem`."""

    def __init__(self, account: login.Login, timeout: float = ANSWER) -> None:
        import httpx

        if not (account.token.isascii() and account.token.isprintable()):
            raise Problem("the token has invalid characters", code="bad_token", hint="gpushare login")
        self.url, self.token = account.url, account.token
        self.skew = timedelta()  # the appliance's clock less ours
        try:
            self._http = httpx.Client(
                base_url=f"{account.url}/api/v1/",
                headers={"Authorization": f"Token {account.token}"} if account.token else {},
                timeout=httpx.Timeout(timeout, connect=min(timeout, CONNECT)),
                # Without TLS nothing is verified: spares reading every CA.
                transport=proxies.transport(account.url, verify=account.url.startswith("https:")),
            )
        except proxies.BadProxy as error:
            raise Problem(str(error), code="bad_proxy") from None
        except (httpx.InvalidURL, ValueError) as error:
            raise Problem(f"{account.url!r} is not an address ({error})", hint="gpushare login URL") from None

    def close(self) -> None:
        self._http.close()

    def websocket(self, path: str) -> dict[str, Any]:
        """What `websockets`' connect takes, for this address of the appliance."""
        address = urlsplit(self.url)
        return {
            "uri": f"ws{self.url.removeprefix('http')}/ws/{path}",
            "origin": f"{address.scheme}://{address.netloc}",
            "additional_headers": {"Authorization": f"Token {self.token}"},
            "compression": None,
            "open_timeout": CONNECT,
            "proxy": proxies.proxy_for(self.url),
        }

    def get(self, path: str, **params: Any) -> Any:
        return self._ask("GET", path, params=params)

    def launch(self, body: Json, pending: Pending) -> Json:
        """The key makes a second try safe when the answer to the first one got lost."""
        key = uuid.uuid4().hex
        for pause in (*RETRIES, None):
            try:
                return self._settled(
                    self._ask("POST", "containers/", json=body, headers={"Idempotency-Key": key}), pending
                )
            except Problem as problem:
                if pause is None or problem.code != "dropped":
                    raise
                time.sleep(pause)
        raise AssertionError

    def act(self, container: Json, what: str, **body: Any) -> Json:
        """pause, resume or kill: what really happened, however long it takes."""
        return self._settled(self._ask("POST", f"containers/{container['id']}/{what}/", json=body))

    def change(self, container: Json, **fields: Any) -> Json:
        return self._settled(self._ask("PATCH", f"containers/{container['id']}/", json=fields))

    def set_compute(self, gpu: str, mode: str) -> Json:
        """How containers share a GPU; the command that says what became of it."""
        return self._settled(self._ask("PATCH", f"gpus/{quote(gpu, safe='')}/", json={"compute": mode}))

    def drain_gpu(self, gpu: str, what: str, reason: str) -> Json:
        """`what`: drain or undrain; the command that says what became of it."""
        return self._settled(self._ask("POST", f"gpus/{quote(gpu, safe='')}/{what}/", json={"note": reason}))

    def set_policy(self, name: str) -> Json:
        """Admins: who is served first from now on."""
        return self._settled(self._ask("PUT", "policy/", json={"policy": name}))

    def send(
        self, method: str, path: str | tuple[str, ...], body: Json | None = None, params: Json | None = None
    ) -> Any:
        """A change that is done when it is answered. A path in words, which may hold anything, or one as it is."""
        where = path if isinstance(path, str) else _path(path)
        return self._about(method, where, **({} if body is None else {"json": body}),
                           **({} if params is None else {"params": params}))  # fmt: skip

    def fetch_one(self, *words: str) -> Json:
        found: Json = self._about("GET", _path(words))
        return found

    def _about(self, method: str, path: str, **options: Any) -> Any:
        try:
            return self._ask(method, path, **options)
        except Problem as problem:
            if problem.field in ("username", "name"):
                problem.field = ""  # it is an argument here, and no option
            raise

    def remove(self, container: Json) -> Json:
        return self._settled(self._ask("DELETE", f"containers/{container['id']}/"))

    def each(self, path: str, **params: Any) -> Iterator[Json]:
        """Everything in a list, page by page as it is needed."""
        page = self.get(path, **params)
        while True:
            yield from page["results"]
            if not page.get("next"):
                return
            page = self._ask("GET", f"{path}?{urlsplit(page['next']).query}")

    def containers(self, *, every: bool = False, **only: str) -> Iterator[Json]:
        """Those that live, or all that were not removed, by REST's filters `only`; the newest first."""
        return self.each("containers/", page_size=PAGE, **({} if every else {"live": "true"}), **only)

    def container(self, word: str) -> Json:
        """By name, by id, or by the beginning of an id that only one has."""
        # A name belongs to one container while that lives, so the newest of this name is the living one if any is.
        named = self.get("containers/", name=word, page_size=1)["results"]
        if named:
            return dict(named[0])
        if UUID.fullmatch(word):
            return self.fetch(word.lower())
        if START.fullmatch(word):
            for every in (False, True):
                found = [each for each in self.containers(every=every) if each["id"].startswith(word.lower())]
                if len(found) == 1:
                    return found[0]
                if found:
                    raise Problem(f"{len(found)} containers have an id that starts with {word}", code="ambiguous")
        raise Problem(f"no container {word!r}", code="not_found", hint="gpushare ps -a lists them", status=404)

    def fetch(self, identity: str, **options: Any) -> Json:
        found: Json = self._ask("GET", f"containers/{quote(identity, safe='')}/", **options)
        return found

    def sign_in(self, username: str, password: str) -> str:
        """A new token for a user name and a password."""
        made = self._ask("POST", "sign-in/", json={"username": username, "password": password, "name": "gpushare"})
        return str(made["key"])

    def whoami(self) -> str:
        """The user that the token belongs to."""
        return str(self.get("me/")["username"])

    @contextmanager
    def stream(self, path: str, **params: Any) -> Iterator[Iterator[bytes]]:
        """A body as it comes, for as long as it comes."""
        import httpx

        try:
            with self._http.stream(
                "GET",
                path,
                params=params,
                headers={"Accept-Encoding": "identity"},
                timeout=httpx.Timeout(CONNECT, read=None),
            ) as answer:
                if not answer.is_success:
                    answer.read()
                    raise problem_of(answer)
                yield answer.iter_raw()
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise _lost(self.url, error) from None

    def now(self) -> datetime:
        """By the appliance's clock: the times it gives are compared with this one."""
        return datetime.now(UTC) + self.skew

    def _settled(self, answer: Json, pending: Pending = lambda command: None) -> Json:
        """The container a command led to: at once, or, where the appliance did not wait for it (202), in the end.

        The command itself if it is about no container.
        """
        if "command" not in answer or "url" not in answer:
            return answer
        until, pause = time.monotonic() + SETTLE, 0.1
        while time.monotonic() < until:
            command = self.get(f"commands/{answer['command']}/")
            if command["outcome"] == "refused":
                raise from_answer(command["status"], {"error": command})
            if command["done"]:
                return self.fetch(command["container"]) if command["container"] else dict(command)
            pending(command)
            time.sleep(pause)
            pause = min(pause * 2, 1.0)
        raise Problem(
            f"still not done after {SETTLE:.0f} s: {answer['message']}", code="pending", hint="gpushare ps -a"
        )

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        answer = self._request(method, path, options)
        until = time.monotonic() + (0 if "timeout" in options else BUSY)
        while answer.status_code == TOO_MANY and (pause := _pause_of(answer)) <= until - time.monotonic():
            time.sleep(pause)
            answer = self._request(method, path, options)
        self._compare_clocks(answer)
        if not answer.is_success:
            raise problem_of(answer)
        try:
            return answer.json() if answer.content else {}
        except ValueError:
            raise problem_of(answer) from None

    def _request(self, method: str, path: str, options: Any) -> httpx.Response:
        import httpx

        try:
            return self._http.request(method, path, **options)
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise _lost(self.url, error) from None

    def _compare_clocks(self, answer: httpx.Response) -> None:
        """The date counts whole seconds: less than two of them apart is the same time."""
        if sent := answer.headers.get("date"):
            apart = parsedate_to_datetime(sent) - datetime.now(UTC)
            self.skew = apart if abs(apart) > timedelta(seconds=2) else timedelta()


def _path(words: tuple[str, ...]) -> str:
    return "".join(f"{quote(word, safe='')}/" for word in words)


def _lost(url: str, error: Exception) -> Problem:
    """`unreachable` if nothing was sent, `dropped` if the appliance may have done what it was asked."""
    import httpx

    problem = unreachable(url, error)
    if not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.UnsupportedProtocol | httpx.InvalidURL):
        problem.code = "dropped"
    return problem


def _pause_of(answer: httpx.Response) -> float:
    """Seconds to wait before the next try."""
    given = answer.headers.get("retry-after", "")
    return float(given) if given.isdecimal() else 1.0


def problem_of(answer: httpx.Response) -> Problem:
    try:
        body = answer.json()
    except ValueError:
        body = None
    return from_answer(answer.status_code, body, answer.headers.get("retry-after"))
