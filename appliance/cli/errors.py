"""What can go wrong, as one exception: a sentence, what to do about it, and the exit code."""

from typing import Any

from appliance.flags import flag

UNKNOWN = 401  # nobody is signed in
TOO_MANY = 429
REFUSED = 125  # ours, as docker's: the container, if there is one, was never asked
STARTS = {"cannot_execute": 126, "cannot_start": 127}  # docker's, and a shell's: not executable; not there


class Problem(Exception):
    """`code`, `message` and `field` are those of the REST contract; `hint` says what to do."""

    def __init__(self, message: str, *, code: str = "invalid", hint: str = "", field: str = "", status: int = 0):
        super().__init__(message)
        self.message, self.code, self.hint, self.field, self.status = message, code, hint, field, status

    @property
    def away(self) -> bool:
        """The appliance could not be asked, or could not answer: later it may."""
        if self.code == "output_unreadable":
            return False  # it says what a person has to mend
        return self.code in ("unreachable", "dropped") or self.status == TOO_MANY or self.status >= 500

    @property
    def exit_code(self) -> int:
        """For a command that runs a program."""
        return STARTS.get(self.code, REFUSED)

    def line(self) -> str:
        """One line, whatever the server put into its message."""
        words = " ".join(self.message.split()).rstrip(".")
        field = self.field.partition(".")[0]  # "env.LD_PRELOAD" is about -e
        before = " " if words.endswith("?") else ": "
        return (f"{flag(field)}: " if field else "") + words + (before + self.hint if self.hint else "")

    def as_json(self) -> dict[str, Any]:
        fields = {"code": self.code, "message": self.message, "field": self.field, "hint": self.hint}
        return {"error": {name: value for name, value in fields.items() if value}}


def unreachable(url: str, error: Exception) -> Problem:
    if refusal := getattr(error, "response", None):  # of a WebSocket, in its handshake
        ours = refusal.headers.get("content-type", "").startswith("text/plain")
        body = {"error": {"message": (refusal.body or b"").decode(errors="replace")}} if ours else None
        return from_answer(refusal.status_code, body, refusal.headers.get("retry-after"))
    detail = " ".join(str(error).split()) or type(error).__name__
    hint = "is it up? For another address: gpushare login URL"
    if "WRONG_VERSION_NUMBER" in detail:
        hint = f"the server does not speak TLS. Without TLS: gpushare login {url.replace('https:', 'http:', 1)}"
    return Problem(f"no answer from {url} ({detail})", code="unreachable", hint=hint)


def from_answer(status: int, body: Any, retry_after: str | None = None) -> Problem:
    """An error answer of the REST contract; or of something in between that does not know the contract."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return Problem(
            f"the server answered {status} without a reason",
            code="unexpected",
            status=status,
            hint="does the address belong to an appliance? gpushare login URL",
        )
    return Problem(
        str(error.get("message") or f"refused with {status}"),
        code=str(error.get("code") or "refused"),
        field=str(error.get("field") or ""),
        status=status,
        hint=_hint(status, str(error.get("message") or "").lower(), retry_after),
    )


def _hint(status: int, message: str, retry_after: str | None) -> str:
    """What the message does not say itself."""
    if status == UNKNOWN:
        return "gpushare login" if "sign in again" in message else "log in with: gpushare login"
    if status == TOO_MANY and retry_after and "again" not in message:
        return f"try again in {retry_after} s"
    return ""
