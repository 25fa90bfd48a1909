"""The three ways in: linked symbols, dlsym, cuGetProcAddress. Every line of the table through each of them."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.card import BUILD, ROOT, Card

HOOKS = re.findall(r"X\((CUDA|NVML),\s*(\w+),", (ROOT / "shim/hooks.h").read_text().partition("#define USED")[0])
CUDA = [name for library, name in HOOKS if library == "CUDA"]
# What cuGetProcAddress knows, from the simulated driver's own list: (base name, version, symbol, per-thread symbol).
CALLS = [
    (base, int(version), symbol, twin or symbol)
    for base, version, symbol, twin in re.findall(
        r"^(?:CALL|TWIN)\((\w+), (\d+), (\w+)(?:, (\w+))?\)", (ROOT / "shim/sim/calls.h").read_text(), re.MULTILINE
    )
]

# Runs in a program: addresses by each way.
ADDRESSES = """
def cast(function):
    return ctypes.cast(function, ctypes.c_void_p).value
ours = ctypes.CDLL("libgpushare.so")
versioned = ctypes.CDLL("libc.so.6").dlvsym
versioned.restype, versioned.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
real_dlsym = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    versioned(ctypes.CDLL("libc.so.6")._handle, b"dlsym", b"GLIBC_2.2.5"))
def real(name):
    return real_dlsym(lib._handle, name.encode())
def wrapper(name):
    return real_dlsym(ours._handle, name.encode())
def proc(call, base, version, flags, *more):
    found = ctypes.c_void_p()
    getattr(lib, call)(base.encode(), ctypes.byref(found), version, ctypes.c_uint64(flags), *more)
    return found.value
"""


@pytest.fixture
def loaded(cuda):
    """A program that can be asked for addresses."""

    def ask(code: str):
        return cuda.run(ADDRESSES + code)

    return ask


def test_the_table_has_every_symbol_once():
    names = [name for _, name in HOOKS]
    assert len(names) == len(set(names)) > 70


def test_dlsym_gives_the_wrapper_and_never_the_drivers_own(loaded):
    wrong = loaded(f"""
answer = [name for name in {CUDA!r} if not real(name) or not cast(getattr(lib, name)) == wrapper(name) != real(name)]
""")
    assert wrong == []


def test_a_linked_program_gets_the_wrapper(loaded):
    wrong = loaded(f"""
whole = ctypes.CDLL(None)
answer = [name for name in {CUDA!r} if cast(getattr(whole, name)) != wrapper(name)]
""")
    assert wrong == []


@pytest.mark.parametrize(("call", "more"), [("cuGetProcAddress", []), ("cuGetProcAddress_v2", [None])])
def test_cu_get_proc_address_gives_the_wrapper_of_what_the_driver_returned(loaded, call, more):
    """At every version and with every stream flag; with symbolStatus == NULL."""
    wrong = loaded(f"""
wrong = []
for base, version, symbol, twin in {CALLS!r}:
    for flags, name in ((0, symbol), (1, symbol), (2, twin)):
        # Two symbols may be one function; then either's wrapper will do.
        want = [wrapper(other) for other in {CUDA!r} if real(other) == real(name)] or [real(name)]
        if proc("{call}", base, version, flags, *{more!r}) not in want:
            wrong.append((base, version, flags))
answer = wrong
""")
    assert wrong == []


def test_every_hook_is_reached_by_cu_get_proc_address():
    """What cudaTypedefs.h gives no version of is reached by its symbol alone."""
    reached = {name for _, _, symbol, twin in CALLS for name in (symbol, twin)}
    assert set(CUDA) <= reached


def test_nvml_is_not_loaded_for_a_program_that_does_not_use_it(loaded):
    """It would lengthen the start of every CUDA program by a few milliseconds."""
    libraries = loaded("""
proc("cuGetProcAddress_v2", "cuMemAlloc", 13000, 0, None)
proc("cuGetProcAddress_v2", "cuInit", 13000, 0, None)
answer = open("/proc/self/maps").read()
""")
    assert "libcuda.so.1" in libraries
    assert "libnvidia-ml" not in libraries


def test_names_that_are_not_in_the_table(loaded):
    answers = loaded("""
answer = [
    cast(lib.cuInit) == real("cuInit"),
    proc("cuGetProcAddress_v2", "", 13000, 0, None),
    proc("cuGetProcAddress_v2", "cuNoSuchThing", 13000, 0, None),
    lib.cuGetProcAddress_v2(b"cuMemAlloc", None, 13000, ctypes.c_uint64(0), None) != 0,
    lib.cuGetProcAddress_v2(None, ctypes.byref(ctypes.c_void_p()), 13000, ctypes.c_uint64(0), None) != 0,
]
""")
    assert answers == [True, None, None, True, True]


def test_only_exact_names_count(tmp_path: Path):
    """cuDNN's and cuBLAS's names begin like the driver's, and a library may have its own cuMemAlloc."""
    source = tmp_path / "other.c"
    source.write_text("int cudnnCreate(void) { return 7; } int cuMemAlloc_v3(void) { return 8; }")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "libother.so", source], check=True)
    code = (
        f"import ctypes; o = ctypes.CDLL('{tmp_path}/libother.so');"
        "print(o.cudnnCreate(), o.cuMemAlloc_v3(), hasattr(o, 'cuMemAlloc_v2'))"
    )
    run = subprocess.run(
        ["python3", "-c", code],
        env={"LD_PRELOAD": str(BUILD / "libgpushare.so"), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert run.stdout.split() == ["7", "8", "False"]


CHAIN = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
pid_t getppid(void) {
    pid_t (*next)(void) = (pid_t (*)(void))dlsym(RTLD_NEXT, "getppid");
    return next() + ADD;
}
"""


def test_the_next_dlsym_sees_its_own_caller(tmp_path: Path):
    """A dlsym that were *called* by ours would answer RTLD_NEXT for our library: this chain would never end."""
    for index, add in enumerate((1000000, 2000000)):
        source = tmp_path / f"chain{index}.c"
        source.write_text(CHAIN.replace("ADD", str(add)))
        subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / f"chain{index}.so", source, "-ldl"], check=True)
    preload = f"{BUILD}/libgpushare.so {tmp_path}/chain0.so {tmp_path}/chain1.so"
    code = "import os; print(os.getppid())"
    environment = {"LD_PRELOAD": preload, "PATH": "/usr/bin:/bin"}
    run = subprocess.run(["python3", "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert int(run.stdout) > 3000000


def test_rtld_next_for_a_call_of_the_table_is_ours(tmp_path: Path, card: Card):
    source = tmp_path / "next.c"
    source.write_text("""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    void *next = dlsym(RTLD_NEXT, "cuMemAlloc_v2"), *preferred = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
    puts(next && next == preferred && next == dlsym(driver, "cuMemAlloc_v2") ? "ours" : "another's");
    puts(dlsym(driver, "cuNoSuchThing") || !dlerror() ? "found" : "not found");
}
""")
    subprocess.run(["cc", "-o", tmp_path / "next", source, "-ldl"], check=True)
    environment = card.env(LD_PRELOAD=str(BUILD / "libgpushare.so"))
    run = subprocess.run([tmp_path / "next"], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[:2] == ["ours", "not found"]


def test_rtld_next_in_a_library_that_was_loaded_locally_is_ours(tmp_path: Path, card: Card):
    """What comes next there is only in that library's own scope, where our dlsym cannot look."""
    (tmp_path / "local.c").write_text("""
#define _GNU_SOURCE
#include <dlfcn.h>
extern int cuInit(unsigned);
int start(void) { return cuInit(0); }
void *next(const char *name) { return dlsym(RTLD_NEXT, name); }
""")
    (tmp_path / "main.c").write_text("""
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **words) {
    void *(*next)(const char *) = (void *(*)(const char *))dlsym(dlopen(words[1], RTLD_NOW | RTLD_LOCAL), "next");
    void *ours = dlsym(dlopen(words[2], RTLD_NOW), "cuMemAlloc_v2");
    puts(next("cuMemAlloc_v2") == ours ? "ours" : "another's");
    puts(next("cuNoSuchThing") || next("nvmlDeviceGetMemoryInfo") ? "found" : "not found");
}
""")
    driver = BUILD / "sim/libcuda.so.1"
    local = ["cc", "-shared", "-fPIC", "-o", tmp_path / "local.so", tmp_path / "local.c", driver, "-ldl"]
    subprocess.run(local, check=True)
    subprocess.run(["cc", "-o", tmp_path / "main", tmp_path / "main.c", "-ldl"], check=True)
    environment = card.env(LD_PRELOAD=str(BUILD / "libgpushare.so"))
    words = [tmp_path / "main", tmp_path / "local.so", BUILD / "libgpushare.so"]
    run = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[:2] == ["ours", "not found"]
