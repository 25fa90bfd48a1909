"""What may be said with a Docker volume of ours: `docker volume create -d gpushare -o gpu_memory=4GiB`.

The options are fields of a launch, by the same names and rules: those that are about GPUs. All else about such a
container (its image, command, folders, ports, host memory) is said to Docker. One more is `owner`: whose it is.
"""

from collections.abc import Mapping
from typing import Any

from web.errors import Problem
from web.spec import written
from web.spec.requests import LaunchSpec

OWNER = "owner"
OPTIONS = (
    "gpu_memory", "gpus", "priority", "on_shortage", "max_wait_seconds", "ttl_seconds", "guaranteed", "give_way",
    "compute_weight", "compute_limit", "notify",
)  # fmt: skip
SHORT = {"weight": "compute_weight", "limit": "compute_limit"}
LONGEST_NAME = 255
ANY_IMAGE = "unknown"


def parse(options: Mapping[str, str], image: str = "") -> tuple[str, dict[str, Any]]:
    """The owner by name, if one is named, and all fields of a launch of this image. Raises Problem."""
    given: dict[str, Any] = {}
    for said, text in options.items():
        name = SHORT.get(said, said)
        if name != OWNER and name not in OPTIONS:
            known = ", ".join((*OPTIONS, OWNER))
            raise Problem(
                "unknown_field", f'"{said[:64]}" is no option of these volumes. There are: {known}.', 400, said
            )
        if name in given:
            raise Problem("invalid", f'"{name}" is given twice, once by its short name.', 400, said)
        if not isinstance(text, str):
            raise Problem("invalid", f'"{said}" has to be text.', 400, said)
        given[name] = text
    owner = given.pop(OWNER, "").strip()
    try:
        fields = {name: written.read(name, text) for name, text in given.items()}
        return owner, LaunchSpec.parse({"image": image or ANY_IMAGE, **fields})
    except Problem as problem:
        raise Problem(problem.code, f"{problem.field}: {problem.message}", problem.status, problem.field) from None
