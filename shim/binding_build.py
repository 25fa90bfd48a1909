"""Compiles the module behind shim.binding: `python shim/binding_build.py FOLDER`.

The C headers are the one definition: what cffi needs to know is cut out of them here, so a field or a constant that
changes there changes in Python at the next build.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from cffi import FFI

HERE = Path(__file__).resolve().parent
NAME = "_gpushare"
HEADERS = ("wire.h", "lease.h", "lease_v1.h")

# Python reads and writes the fields of a slot through these: plain loads of shared memory may be torn or kept back.
ACCESSORS = """
#define FIELD(type, name)                                                                    \\
    static type slot_##name(const struct lease_slot *slot) { return atomic_load(&slot->name); } \\
    static void set_##name(struct lease_slot *slot, type value) { atomic_store(&slot->name, value); }
"""
# The mapping needs no descriptor; the one of Python's mmap keeps another open for as long as anybody knows it.
MAPPING = """
#include <sys/mman.h>
static void *page_map(int fd) {
    void *page = mmap(NULL, LEASE_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return page == MAP_FAILED ? NULL : page;
}
static void page_unmap(void *page) { munmap(page, LEASE_PAGE_SIZE); }
"""
FIELD = re.compile(r"_Atomic (\w+) (\w+);")


def declarations(source: str) -> str:
    """The part of a header that cffi understands: types, functions and integer constants."""
    source = re.sub(r"/\*.*?\*/", "", source, flags=re.DOTALL)
    constants = re.findall(r"^#define (\w+) (?:0x)?[0-9a-fA-F]+u?[ \t]*$", source, flags=re.MULTILINE)
    body = re.sub(r"^#.*$", "", source, flags=re.MULTILINE).replace("_Atomic ", "")
    # Array lengths are left to the compiler ("[...]"), which knows the macros.
    body = re.sub(r"\[[A-Z_]+\]", "[...]", body)
    return "\n".join(f"#define {name} ..." for name in constants) + re.sub(
        r"(struct \w+ \{[^}]*)\}", r"\1 ...; }", body
    )


def build(folder: Path) -> None:
    sources = {name: (HERE / name).read_text() for name in HEADERS}
    fields = FIELD.findall(sources["lease.h"])
    ffi = FFI()
    ffi.cdef(
        "\n".join(declarations(source) for source in sources.values())
        + "void *page_map(int fd); void page_unmap(void *page);"
        + "".join(
            f"{kind} slot_{name}(const struct lease_slot *slot);void set_{name}(struct lease_slot *slot, {kind} value);"
            for kind, name in fields
        )
    )
    ffi.set_source(
        NAME,
        '#include "lease.c"\n#include "lease_v1.c"\n#include "wire.h"\n'
        + MAPPING
        + ACCESSORS
        + "".join(f"FIELD({kind}, {name})\n" for kind, name in fields),
        include_dirs=[str(HERE)],
        extra_compile_args=["-std=c11", "-O2"],
    )
    with TemporaryDirectory() as work:
        built = Path(ffi.compile(tmpdir=work))
        for old in folder.glob(f"{NAME}.*.so"):
            old.unlink()
        # cffi's code keeps to the stable ABI: what one Python compiles, every later one loads, whatever its name says.
        shutil.move(built, folder / f"{NAME}.abi3.so")


if __name__ == "__main__":
    build(Path(sys.argv[1]).resolve())
