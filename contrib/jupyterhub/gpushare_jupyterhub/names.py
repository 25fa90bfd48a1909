"""What a person's notebook is called on the appliance."""

import hashlib
import re

LONGEST = 63  # letters of a container's name
DIGEST = 16
_OTHER = r"[^a-zA-Z0-9_.-]"


def container_name(person: str, server: str) -> str:
    """One for each server of each person, of the letters that a container's name may have.

    Two of the same name would end each other, as a start ends what an earlier one of its name has left. A name is
    written as it is where the first dash ends the person's; any other has a digest of both, and begins as no plain one
    does.
    """
    plain = f"jupyter-{person}" + (f"-{server}" if server else "")
    if re.fullmatch(r"[a-zA-Z0-9_.]+", person) and len(plain) <= LONGEST and not re.search(_OTHER, plain):
        return plain
    readable = re.sub(_OTHER, "-", plain.replace("-", "_", 1))
    digest = hashlib.sha256(f"{person}\0{server}".encode()).hexdigest()[:DIGEST]
    return f"{readable[: LONGEST - DIGEST - 1]}-{digest}"
