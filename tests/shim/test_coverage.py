"""The coverage table: hooks.h, README.md, entry-points.txt and, where there is one, the real cuda.h say the same.

A newer cuda.h (CUDA_HEADER, CUDA_HOME or /usr/local/cuda) fails here with the names that somebody has to think about.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.card import BUILD, ROOT

HOOKS = re.findall(r"X\((CUDA|NVML|NCCL),\s*(\w+),", (ROOT / "shim/hooks.h").read_text().partition("#define USED")[0])
README = (ROOT / "shim/README.md").read_text()


def base(name: str) -> str:
    """What all forms of a call have in common: versions, and those for per-thread default streams."""
    return re.sub(r"(_v\d+)?(_ptsz)?$", "", name)


def others() -> dict[str, str]:
    """Name → its group in entry-points.txt: what is not intercepted, and why."""
    groups, group = {}, ""
    for line in (ROOT / "shim/entry-points.txt").read_text().splitlines():
        if line.startswith("["):
            group = line.partition("]")[0].strip("[")
        elif line and not line.startswith("#"):
            for name in line.split():
                assert name not in groups, f"{name} is there twice"
                groups[name] = group
    return groups


def header() -> Path | None:
    places = [os.environ.get("CUDA_HEADER", ""), f"{os.environ.get('CUDA_HOME', '/usr/local/cuda')}/include/cuda.h"]
    return next((Path(place) for place in places if place and Path(place).is_file()), None)


def names_in(text: str) -> set[str]:
    """Every symbol that a program built with this cuda.h could link to."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    names = set(re.findall(r"CUDAAPI\s+(cu[A-Z]\w+)\s*\(", text))
    renamed = dict(re.findall(r"#\s*define\s+(cu[A-Z]\w+)\s+(cu[A-Z]\w+)\s*$", text, flags=re.MULTILINE))
    names |= set(renamed.values())
    for name, inner in re.findall(r"#\s*define\s+(cu[A-Z]\w+)\s+__CUDA_API_PT[DS]Z\((cu\w+)\)", text):
        suffix = "_ptds" if re.search(rf"define\s+{name}\s+__CUDA_API_PTDS", text) else "_ptsz"
        names.add(renamed.get(inner, inner) + suffix)
    return names


def test_no_intercepted_call_is_said_not_to_be():
    assert others().keys() & {name for _, name in HOOKS} == set()


def test_every_intercepted_call_has_a_row_in_the_readme_and_no_other():
    table = README.partition("| entry points |")[2].partition("\n\n")[0]
    rows = [name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(rows) == sorted({base(name) for _, name in HOOKS})


def test_every_row_names_a_test_that_there_is():
    tests = re.findall(r"`((?:gate/)?test_\w+\.py)(?:::(\w+))?`", README)
    assert len(tests) > 10
    elsewhere = re.findall(r"`(tests/\w+/test_\w+\.py)(?:::(\w+))?`", README)
    for file, name in [*((f"tests/shim/{file}", name) for file, name in tests), *elsewhere]:
        text = (ROOT / file).read_text()
        assert not name or f"def {name}(" in text, f"{file}::{name}"


def test_cuda_h_has_nothing_that_nobody_has_thought_about():
    path = header()
    if path is None:
        pytest.skip("no cuda.h on this machine; name one by CUDA_HEADER")
    assert sorted(names_in(path.read_text()) - set(others()) - {name for _, name in HOOKS}) == []


LAYOUTS = [
    "CUDA_ARRAY_DESCRIPTOR", "CUDA_ARRAY3D_DESCRIPTOR", "CUDA_ARRAY_MEMORY_REQUIREMENTS", "CUmemLocation",
    "CUmemAllocationProp", "CUmemPoolProps", "CUDA_MEM_ALLOC_NODE_PARAMS", "CUuuid", "CUarrayMapInfo",
]  # fmt: skip
FIELDS = [
    ("CUDA_ARRAY3D_DESCRIPTOR", "Flags"), ("CUmemAllocationProp", "location"), ("CUmemPoolProps", "location"),
    ("CUarrayMapInfo", "memOperationType"), ("CUarrayMapInfo", "memHandle"),
    ("CUDA_MEM_ALLOC_NODE_PARAMS", "bytesize"), ("CUDA_MEM_ALLOC_NODE_PARAMS", "dptr"),
]  # fmt: skip
NUMBERS = re.findall(r"\b(CU(?:DA)?_[A-Z0-9_]+) = ", (ROOT / "shim/cuda_abi.h").read_text())


def test_the_types_are_those_of_cuda_h(tmp_path):
    """Both headers define the same names, so each is printed by a program of its own."""
    path = header()
    if path is None:
        pytest.skip("no cuda.h on this machine; name one by CUDA_HEADER")
    body = "int main(void) {"
    body += "".join(f'printf("{name} %zu\\n", sizeof({name}));' for name in LAYOUTS)
    body += "".join(f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));' for name, field in FIELDS)
    body += "".join(f'printf("{name} %d\\n", (int){name});' for name in NUMBERS) + "}"
    said = []
    for include in (path, ROOT / "shim/cuda_abi.h"):
        source = tmp_path / "layout.c"
        source.write_text(f'#include <stdio.h>\n#include <stddef.h>\n#include "{include}"\n{body}\n')
        subprocess.run(["cc", "-o", tmp_path / "layout", source], check=True)
        said.append(subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True).stdout)
    assert len(NUMBERS) > 15
    assert said[0] == said[1]


def test_the_library_exports_the_whole_table():
    words = ["readelf", "-W", "--dyn-syms", BUILD / "libgpushare.so"]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert {name for _, name in HOOKS} <= set(re.findall(r"(?:GLOBAL|WEAK)\s+DEFAULT\s+\d+ (\w+)", text))
