"""The library is loaded into every program of an image: shells, static and set-user-ID ones, those of another libc."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.card import BUILD

LIBRARY = BUILD / "libgpushare.so"
ENV = {"PATH": "/usr/bin:/bin", "LD_PRELOAD": str(LIBRARY)}


def run(*words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, env={**ENV, **env}, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="session")
def undefined() -> list[tuple[str, tuple[int, ...]]]:
    """What the library needs: (symbol, version of glibc that brought it)."""
    if "2.17" not in subprocess.run(["make", "-nBC", "shim", "shim"], capture_output=True, text=True).stdout:
        pytest.skip("built by this machine's own compiler: ziglang is not installed")
    text = subprocess.run(["readelf", "-W", "--dyn-syms", LIBRARY], capture_output=True, text=True, check=True).stdout
    return [
        (name, tuple(int(part) for part in version.split(".")))
        for name, version in re.findall(r"UND (\w+)@GLIBC_([\d.]+)", text)
    ]


def test_it_needs_no_symbol_newer_than_glibc_2_17(undefined):
    assert len(undefined) > 20
    assert [name for name, version in undefined if version > (2, 17)] == []


def test_it_needs_nothing_but_libc():
    text = subprocess.run(["readelf", "-d", LIBRARY], capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"NEEDED.*\[(.*)\]", text)) <= {"libc.so.6", "libdl.so.2"}


def test_it_exports_only_the_table_dlsym_and_mmap():
    text = subprocess.run(["readelf", "-W", "--dyn-syms", LIBRARY], capture_output=True, text=True, check=True).stdout
    names = set(re.findall(r"(?:GLOBAL|WEAK)\s+DEFAULT\s+\d+ (\w+)", text))
    assert {name for name in names if not re.match(r"(cu|nvml|nccl)[A-Z]", name)} == {"dlsym", "mmap", "mmap64"}


def test_a_shell_notices_nothing():
    ended = run("/bin/sh", "-c", "echo $((1+1)); /bin/ls / | head -1 >/dev/null; exit 3")
    assert (ended.stdout, ended.stderr, ended.returncode) == ("2\n", "", 3)


@pytest.mark.parametrize(
    ("flags", "env", "starts"),
    [
        (["-fsanitize=address"], {}, False),
        (["-fsanitize=address"], {"ASAN_OPTIONS": "verify_asan_link_order=0"}, True),
        (["-fsanitize=address", "-static-libasan"], {}, True),
        (["-fsanitize=thread"], {}, True),
        (["-fsanitize=undefined"], {}, True),
    ],
)
def test_a_program_with_a_sanitizer_starts_as_the_document_says(tmp_path, flags, env, starts):
    """docs/cli.md."""
    program = tmp_path / "program"
    source = (
        "#include <stdlib.h>\nint main(void) { volatile char *p = malloc(8); p[7] = 1; free((void *)p); return 0; }"
    )
    command = ["cc", *flags, "-x", "c", "-", "-o", program]
    if subprocess.run(command, input=source, text=True, capture_output=True).returncode:
        pytest.skip(f"this compiler has no {flags}")
    ended = run(program, **env)
    assert (ended.returncode == 0) is starts
    assert ("does not come first" in ended.stderr) is not starts


def test_loading_does_nothing(tmp_path):
    """No socket, no thread, no output, no file: only the loader's own work."""
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    log = tmp_path / "calls"
    subprocess.run(["strace", "-f", "-o", log, "-E", f"LD_PRELOAD={LIBRARY}", "/bin/true"], check=True)
    calls = log.read_text()
    assert str(LIBRARY) in calls
    assert not re.search(r"\b(socket|connect|clone3?|fork|vfork|write|memfd_create|rt_sigaction)\(", calls)


def test_a_static_program_is_as_before(tmp_path):
    source = tmp_path / "static.c"
    source.write_text('#include <stdio.h>\nint main(void) { puts("static"); }')
    subprocess.run(["cc", "-static", "-o", tmp_path / "static", source], check=True)
    assert run(tmp_path / "static").stdout == "static\n"


# musl's own start, in place of the files of a compiler for it: the library itself is there, as the dynamic linker.
MUSL = """
#include <dlfcn.h>
#include <stdio.h>
int main(void) { return puts(dlsym(RTLD_DEFAULT, "puts") == (void *)puts ? "right" : "wrong") < 0; }
int __libc_start_main(int (*)(void), int, char **, void *, void *, void *);
void start(long *stack) { __libc_start_main(main, (int)*stack, (char **)(stack + 1), NULL, NULL, NULL); }
__asm__(".globl _start\\n_start: mov %rsp, %rdi\\nand $-16, %rsp\\ncall start");
"""


def test_a_program_that_uses_dlsym_under_musl(tmp_path):
    musl = "/lib/ld-musl-x86_64.so.1"
    if not Path(musl).exists():
        pytest.skip("musl is not installed")
    (tmp_path / "musl.c").write_text(MUSL)
    words = ["cc", "-nostdlib", f"-Wl,--dynamic-linker={musl}", "-o", tmp_path / "musl", tmp_path / "musl.c", musl]
    subprocess.run(words, check=True)
    ended = run(tmp_path / "musl")
    assert (ended.stdout, ended.stderr, ended.returncode) == ("right\n", "", 0)


def test_in_a_set_user_id_program_the_environment_is_not_heard(tmp_path, grants):
    """There the socket cannot be chosen by whoever starts the program."""
    source = tmp_path / "secure.c"
    source.write_text(
        "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n"
        "int cuDevicePrimaryCtxRetain(void **, int);\n"
        'int main(void) { void *c; printf("%d\\n", cuDevicePrimaryCtxRetain(&c, 0)); }'
    )
    if os.geteuid() != 0:
        pytest.skip("only root can make such a program")
    program = tmp_path / "secure"
    # Linked to the library, since LD_PRELOAD is ignored there; /etc/ld.so.preload would load it in the same way.
    subprocess.run(["cc", "-o", program, source, LIBRARY, f"-Wl,-rpath,{BUILD}"], check=True)
    os.chown(program, 65534, -1)
    program.chmod(0o4755)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    ended = subprocess.run([program], env=grants.env() | {"LD_PRELOAD": ""}, capture_output=True, text=True)
    assert ended.stdout.strip() == "2"
    assert "/run/gpushare/gpushare.sock" in ended.stderr
    assert grants.peers == []


def test_exec_and_nested_shells_keep_it():
    code = "import ctypes; print(hasattr(ctypes.CDLL(None), 'cuMemAlloc_v2'))"
    assert run("/bin/sh", "-c", f'exec /bin/sh -c "exec /usr/bin/python3 -c \\"{code}\\""').stdout == "True\n"


def test_no_descriptor_is_inherited_by_what_a_program_starts(cuda):
    left = cuda.run("""
import subprocess
answer = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, close_fds=False).stdout
""")
    assert "gpushare-lease" not in left
    assert "socket:" not in left


def test_errno_of_the_program_is_left_alone(cuda, grants):
    """Also by a call that has to ask the scheduler."""
    before, after = cuda.run("""
libc = ctypes.CDLL("libc.so.6")
libc.__errno_location.restype = ctypes.POINTER(ctypes.c_int)
out = ctypes.c_uint64()
errno = libc.__errno_location()
errno[0] = 77
result = lib.cuMemAlloc_v2(ctypes.byref(out), ctypes.c_size_t(4 << 20))
answer = result, errno[0]
""")
    assert (before, after) == (0, 77)


def test_it_builds_for_aarch64():
    built = subprocess.run(["make", "-s", "-C", "shim", "aarch64"], capture_output=True, text=True, check=False)
    if "ziglang" in built.stderr or not (BUILD / "aarch64/libgpushare.so").exists():
        pytest.skip("ziglang is not installed")
    header = subprocess.run(["readelf", "-h", BUILD / "aarch64/libgpushare.so"], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert "AArch64" in header.stdout
