"""What goes wrong, in one shape for REST, pages and the scheduler's answers (docs/rest.md)."""

from math import ceil


class Problem(Exception):
    """Something was refused. `code` is for programs, `message` for people, `field` is the culprit.

    `wait` is the seconds until it may be tried again, where that is known.
    """

    def __init__(self, code: str, message: str, status: int = 400, field: str = "", wait: float = 0.0) -> None:
        super().__init__(message)
        self.code, self.message, self.status, self.field = code, message, status, field
        self.wait = wait

    @property
    def retry_after(self) -> str:
        """Whole seconds, for the header of that name; empty if nobody knows. What is away may be back at any time."""
        wait = self.wait or (2 if self.status == 503 else 0)
        return str(ceil(wait)) if wait else ""

    def as_dict(self) -> dict[str, dict[str, str]]:
        error = {"code": self.code, "message": self.message}
        if self.field:
            error["field"] = self.field
        return {"error": error}


def invalid(message: str, field: str = "", code: str = "invalid") -> Problem:
    return Problem(code, message, 400, field)


def forbidden(message: str, field: str = "") -> Problem:
    return Problem("forbidden", message, 403, field)


def not_found(message: str, field: str = "") -> Problem:
    return Problem("not_found", message, 404, field)


def conflict(message: str, field: str = "", code: str = "conflict") -> Problem:
    return Problem(code, message, 409, field)
