"""Which values a node may write into a column: those that everybody can read.

PostgreSQL takes more than Python: a time without an end, a number that is none, JSON of any shape and depth. One such
value in the row of one node would end every page that shows all of them, and its own removal. So each column that a
node writes has a range here, by its field's type, and JSON is to be like an example. Sentences and names may say
anything: whoever shows them escapes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from django.db import models

from web.models import Claim, Command, Container, Gpu, Node, Planned, Volume

TIMES = "BETWEEN '0002-01-01' AND '9000-01-01'"
STAMPED = ((Node, "seen_at"), (Node, "started_at"))  # by the database: nobody has given a sign of life of tomorrow
SECONDS = 10_000_000_000  # and all else that is no whole number; it can be added to any time
WHOLE = 1 << 53  # bytes and counts: what a browser can tell apart
LONGEST = 1 << 20  # bytes of a JSON value
TEXTS = [""]

# A number may be from 0 to its example; a list of one is a list of such; a name with "?" need not be there, and "*"
# stands for any names; null for anything. What else an object has is not looked at.
_HISTOGRAM = {"bounds": [SECONDS], "counts": [WHOLE], "sum": WHOLE}
_MOVED = [WHOLE, SECONDS]
EXAMPLES: Mapping[tuple[type[models.Model], str], Any] = {
    (Node, "policies"): [{"name": "", "explanation": "", "bound": "", "source": ""}],
    (Node, "outdated"): TEXTS,
    (Node, "figures"): {
        "?decisions": _HISTOGRAM, "?lateness": _HISTOGRAM, "?waits": _HISTOGRAM,
        "?events": {"*": WHOLE}, "?calls": {"*": WHOLE}, "?failures": [["", "", WHOLE]], "?turns": WHOLE,
        "?events_written": WHOLE, "?events_behind": WHOLE, "?rows_behind": WHOLE, "?samples_behind": WHOLE,
    },
    (Node, "moved"): {"?first": _MOVED, "?out": _MOVED, "?back": _MOVED},
    (Node, "nearly_full"): [{"of": "", "free": WHOLE, "total": WHOLE, "since": SECONDS}],
    (Gpu, "strangers"): [{"pid": 1 << 32, "bytes": WHOLE, "user": "", "command": ""}],
    (Claim, "processes"): [
        {"pid": 1 << 32, "used": WHOLE, "real": WHOLE, "uncapped": True, "?ranks": [WHOLE], "?of": WHOLE}
    ],
    (Container, "command"): TEXTS,
    (Container, "environment"): {"*": ""},
    (Container, "gpu_uuids"): TEXTS,
    (Container, "volumes"): TEXTS,
    (Container, "ports"): TEXTS,
    (Container, "constraints"): TEXTS,
    (Container, "notify"): TEXTS,
    (Command, "arguments"): {},
    (Planned, "progress"): {
        "?next": WHOLE, "?ok": WHOLE, "?failed": WHOLE, "?running": {"*": None}, "?again": {"*": [WHOLE, SECONDS]},
    },
    (Volume, "options"): {"*": ""},
}  # fmt: skip

FUNCTIONS = f"""
CREATE OR REPLACE FUNCTION gpushare_is_like(given jsonb, example jsonb) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE SET search_path = public, pg_temp AS $$
BEGIN
    IF jsonb_typeof(example) = 'null' THEN RETURN true; END IF;
    IF jsonb_typeof(given) <> jsonb_typeof(example) THEN RETURN false; END IF;
    CASE jsonb_typeof(example)
    WHEN 'number' THEN
        RETURN given::numeric BETWEEN 0 AND example::numeric;
    WHEN 'array' THEN
        IF jsonb_array_length(example) = 1 THEN
            RETURN NOT EXISTS (
                SELECT FROM jsonb_array_elements(given) each WHERE NOT gpushare_is_like(each, example -> 0));
        END IF;
        RETURN jsonb_array_length(given) = jsonb_array_length(example) AND NOT EXISTS (
            SELECT FROM generate_series(0, jsonb_array_length(example) - 1) place
            WHERE NOT gpushare_is_like(given -> place, example -> place));
    WHEN 'object' THEN
        RETURN NOT EXISTS (
            SELECT FROM jsonb_each(example) asked WHERE CASE
                WHEN asked.key = '*' THEN EXISTS (
                    SELECT FROM jsonb_each(given) part WHERE NOT gpushare_is_like(part.value, asked.value))
                WHEN given ? ltrim(asked.key, '?') THEN
                    NOT gpushare_is_like(given -> ltrim(asked.key, '?'), asked.value)
                ELSE asked.key NOT LIKE '?%' END);
    ELSE
        RETURN true;
    END CASE;
END $$;

-- Of whatever shape: not so large, so deep, or with such numbers, that nobody can read it.
CREATE OR REPLACE FUNCTION gpushare_is_readable(given jsonb) RETURNS boolean
    LANGUAGE sql IMMUTABLE SET search_path = public, pg_temp AS $$
    SELECT pg_column_size(given) <= {LONGEST} AND NOT jsonb_path_exists(given, '$.**{{33 to last}}')
        AND NOT jsonb_path_exists(given, '$.** ? (@ > {WHOLE} || @ < -{WHOLE})')$$;
"""


def readable(model: type[models.Model], names: Iterable[str]) -> str:
    """That these fields of a row can be read, in SQL: for a policy's WITH CHECK, where nothing known is a refusal."""
    checks = (_check(model, field) for field in model._meta.concrete_fields if field.name in set(names))
    return " AND ".join(check for check in checks if check) or "true"


def _check(model: type[models.Model], field: models.Field[Any, Any]) -> str:
    column, types = f'"{field.column}"', models
    match field:
        case types.AutoField() | types.ForeignKey():
            return ""
        case types.DateTimeField():
            said = f"{column} {TIMES}"
            if (model, field.name) in STAMPED:
                said += f" AND {column} <= now() + interval '1 minute'"
        case types.FloatField():
            said = f"{column} BETWEEN -{SECONDS} AND {SECONDS}"
        case types.IntegerField():
            said = f"{column} BETWEEN -{WHOLE} AND {WHOLE}"
        case types.JSONField():
            example = json.dumps(EXAMPLES.get((model, field.name)))
            said = f"gpushare_is_readable({column}) AND gpushare_is_like({column}, '{example}')"
        case types.CharField() if field.choices:
            known = [str(value) for value, _ in field.flatchoices] + [""] * field.blank
            said = f"{column} IN ({', '.join(map(repr, known))})"
        case _:
            return ""
    return f"({column} IS NULL OR {said})"
