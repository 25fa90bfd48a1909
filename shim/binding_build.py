"""Writes the two halves of shim.binding: `python shim/binding_build.py FOLDER`.

`_gpushare.c` is a plain C library, which the Makefile compiles to `_gpushare.so`; `_gpushare.py` tells cffi what it has
(ABI mode). Neither needs Python's headers, and both serve every Python.

The C headers are the one definition: what cffi needs to know is cut out of them here, so a field or a constant that
changes there changes in Python at the next build. cffi computes the layouts by itself; the library does not compile
if the C compiler's are different.
"""

import re
import sys
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
NAME = "_gpushare"
HEADERS = ("wire.h", "gate/gate.h", "lease.h")
STRUCTS = ("wire_frame", "gate_entry", "gate", "lease_slot", "lease_page")
SOURCES = '#include "lease.c"\n#include "gate/gate.c"\n#include "wire.h"\n#include <sys/mman.h>\n'

# Python reads and writes the fields of a slot through these: plain loads of shared memory may be torn or kept back.
ACCESSORS = """
{type} slot_{name}(const struct lease_slot *slot) {{ return atomic_load(&slot->{name}); }}
void set_{name}(struct lease_slot *slot, {type} value) {{ atomic_store(&slot->{name}, value); }}
"""
# And the words of the gate's header. What an entry is made of, gate_look copies.
GATE = """
uint32_t gate_asked(const struct gate *gate) { return atomic_load(&gate->asked); }
uint32_t gate_unseen_now(const struct gate *gate) { return atomic_load(&gate->unseen); }
uint32_t gate_used(const struct gate *gate) { return atomic_load(&gate->used); }
uint32_t gate_passed(const struct gate *gate) { return atomic_load(&gate->passed); }
uint16_t gate_serial(const struct gate *gate, int entry) { return atomic_load(&gate->entry[entry].serial); }
"""
# The mapping needs no descriptor; the one of Python's mmap keeps another open for as long as anybody knows it.
MAPPING = """
void *page_map(int fd) {
    void *page = mmap(NULL, LEASE_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return page == MAP_FAILED ? NULL : page;
}
void page_unmap(void *page) { munmap(page, LEASE_PAGE_SIZE); }
"""
FIELD = re.compile(r"_Atomic (\w+) (\w+);")
SIGNATURE = re.compile(r"^(.+\)) \{", re.MULTILINE)


def declarations(source: str) -> str:
    """The part of a header that cffi understands: types, functions and integer constants."""
    source = re.sub(r"/\*.*?\*/", "", source, flags=re.DOTALL)
    constants = re.findall(r"^#define (\w+) ((?:0x)?[0-9a-fA-F]+)u?[ \t]*$", source, flags=re.MULTILINE)
    body = re.sub(r"^#.*$", "", source, flags=re.MULTILINE).replace("_Atomic ", "")
    return "".join(f"#define {name} {value}\n" for name, value in constants) + body


def signatures(source: str) -> str:
    """What the functions of this source are declared as."""
    return "".join(f"{found};\n" for found in SIGNATURE.findall(source))


def layout(ffi: FFI) -> str:
    """C that compiles only if both sides see the same structures."""
    lines = [f'_Static_assert(sizeof(struct {name}) == {ffi.sizeof(f"struct {name}")}, "{name}");' for name in STRUCTS]
    for struct in STRUCTS:
        for field, _ in ffi.typeof(f"struct {struct}").fields or ():
            at = ffi.offsetof(f"struct {struct}", field)
            lines.append(f'_Static_assert(offsetof(struct {struct}, {field}) == {at}, "{struct}.{field}");')
    return "\n".join(lines)


def build(folder: Path) -> None:
    headers = [(HERE / name).read_text() for name in HEADERS]
    fields = FIELD.findall((HERE / "lease.h").read_text())
    ours = MAPPING + GATE + "".join(ACCESSORS.format(type=kind, name=name) for kind, name in fields)
    ffi = FFI()
    ffi.cdef("".join(map(declarations, headers)) + signatures(ours))
    ffi.set_source(NAME, None)
    (folder / f"{NAME}.c").write_text(SOURCES + "#include <stddef.h>\n" + ours + layout(ffi) + "\n")
    ffi.emit_python_code(str(folder / f"{NAME}.py"))


if __name__ == "__main__":
    build(Path(sys.argv[1]).resolve())
