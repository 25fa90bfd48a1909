"""What `make audit` asks: is a pinned Python package one that an advisory names? `python -m tests.dependencies FILE`.

FILE maps each package's name to its advisories, of which `id`, `cve`, `v` (the versions concerned, as in a requirement)
and `fixed_in` are read. Nothing is asked over the network, so what came out after the data did is not known: its date
is printed, and when it is older than TOO_OLD days so is that. The exit code is 1 if a pin is named, 2 if the data says
nothing about a version that is known to be bad: then it tells nothing about the others either.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

PINS = Path(__file__).resolve().parents[2] / "requirements"
KNOWN_BAD = "django==2.2.12"
TOO_OLD = 90  # days

Advisories = Mapping[str, Sequence[Mapping[str, Any]]]


def pins(text: str) -> Iterator[str]:
    """`name==version` of each requirement in a file of pip's."""
    for line in text.replace("\\\n", " ").splitlines():
        if words := line.partition("#")[0].partition("--hash")[0].strip():
            needed = Requirement(words)
            (pinned,) = needed.specifier
            yield f"{canonicalize_name(needed.name)}=={pinned.version}"


def findings(pinned: Sequence[str], advisories: Advisories) -> list[str]:
    """A line for each advisory that concerns a pin."""
    by_name = {canonicalize_name(name): known for name, known in advisories.items()}
    return [
        f"{pin}: {one['id']} ({one['cve']}), mended in {one['fixed_in'] or 'no release'}"
        for pin in pinned
        for name, _, version in [pin.partition("==")]
        for one in by_name.get(canonicalize_name(name), ())
        if SpecifierSet(one["v"], prereleases=True).contains(version)
    ]


def date_of_data() -> date:
    """As it stands beside the pin of the package that carries it."""
    (dates,) = re.findall(r"^# data: (\S+)$", (PINS / "audit.txt").read_text(), re.MULTILINE)
    return date.fromisoformat(dates)


def main(data: Path) -> int:
    advisories: Advisories = json.loads(data.read_text())
    age = (datetime.now(UTC).date() - date_of_data()).days
    print(f"Advisories as of {date_of_data()}, {age} days ago: what was published since is not known.")
    if age > TOO_OLD:
        print(f"That is more than {TOO_OLD} days. Is there a newer release for requirements/audit.txt?")
    if not findings([KNOWN_BAD], advisories):
        print(f"They do not name {KNOWN_BAD}, which is known to be bad: nothing can be concluded from them.")
        return 2
    files = sorted(path for path in PINS.glob("*.txt") if path.name != "audit.txt")
    pinned = sorted({pin for path in files for pin in pins(path.read_text())})
    found = findings(pinned, advisories)
    for each in found:
        print(each)
    known = sum(canonicalize_name(pin.partition("==")[0]) in advisories for pin in pinned)
    print(f"{len(pinned)} pinned Python packages, {known} of which have advisories; pins named by one: {len(found)}.")
    print("Not among them: the front-end libraries (`npm audit` in static/ asks over the network) and C.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
