"""Request bodies are JSON objects and answers are JSON, whatever the headers say."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from django.conf import settings
from rest_framework.exceptions import ParseError
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from web.errors import Problem, invalid
from web.texts import fault_of

# Of JSON: the longest command has 16,384 words. With so many, 3 MiB take 30 MiB at most while they are read.
BODY_PARTS = 50_000


class StrictJSONParser(BaseParser):
    """One JSON object. Names that come twice, NaN, and text that no database can store are refused.

    So is what has too many parts, before it is read: as lists and objects it takes 30 times the memory of its text.
    """

    media_type = "application/json"

    def parse(
        self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        body: bytes = stream.read(limit + 1)
        if len(body) > limit:
            raise Problem("too_large", f"The body of the request is larger than {limit} bytes.", 413)
        if not body.strip():
            return {}
        if sum(map(body.count, (b"[", b"{", b","))) > BODY_PARTS:
            most = f"The body of a request may have {BODY_PARTS} lists, objects and commas at most."
            raise invalid(most, code="too_many_parts")
        try:
            data = json.loads(body.decode(), object_pairs_hook=_once, parse_constant=_refuse_constant)
            if fault := fault_of(data):
                raise ValueError(f"text may not hold {fault}")
        except RecursionError:
            raise ParseError("The body is nested too deeply.") from None
        except ValueError as error:
            raise ParseError(f"The body is not JSON: {error}.") from None
        if not isinstance(data, dict):
            raise ParseError("The body has to be a JSON object.")
        return data


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f'"{name[:64]}" is there twice')
        found[name] = value
    return found


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a number in JSON")


class OnlyJson(BaseContentNegotiation):
    """The first parser and renderer always: `Accept` and `Content-Type` of careless clients change nothing."""

    def select_parser(self, request: Request, parsers: Iterable[BaseParser]) -> BaseParser:
        return next(iter(parsers))

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        renderer = next(iter(renderers))
        return renderer, renderer.media_type
