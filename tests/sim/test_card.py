"""One card for all processes of the host: what one holds no other can have, and what a dead one held comes back."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import shim.sim
from tests.support.card import BUILD, CONTEXT, MIB, ROOT, Card, read_until
from tests.support.eventually import until

HOLDER = """
import sys
from tests.support.cuda import *
cuda = Cuda()
cuda.alloc(int(sys.argv[1]) * MIB)
print("holding", flush=True)
sys.stdin.read()
"""


def hold(card: Card, mib: int) -> int:
    """Starts a process that holds so much beside its context; its pid."""
    process = card.python(HOLDER, str(mib))
    read_until(process, "holding")
    return process.pid


def test_nvml_shows_who_holds_what(card: Card) -> None:
    first, second = hold(card, 100), hold(card, 200)
    gpu = card.gpus()[0]
    assert gpu["held"] == {first: CONTEXT + 100 * MIB, second: CONTEXT + 200 * MIB}
    assert gpu["used"] == 2 * CONTEXT + 300 * MIB
    assert gpu["total"] == 5120 * MIB


def test_all_processes_together_get_what_the_card_holds(card: Card) -> None:
    # 50 contexts are 3300 of 5120 MiB; in the other 1820 MiB there is room for 64 MiB 28 times.
    output = card.check("""
        import os
        go, tell = zip(*[os.pipe() for _ in range(3)])
        heard, say = os.pipe()
        for _ in range(50):
            if os.fork() == 0:
                cuda = Cuda()
                os.write(say, b".")
                os.read(go[0], 1)
                code = cuda.code("cuMemAlloc_v2", byref(c_uint64()), c_size_t(64 * MIB))
                os.write(say, b"y" if code == 0 else b"n" if code == OUT_OF_MEMORY else b"?")
                os.read(go[1], 1)
                os._exit(0)
        assert all(os.read(heard, 1) == b"." for _ in range(50))
        os.write(tell[0], b"x" * 50)
        answers = [os.read(heard, 1) for _ in range(50)]
        os.write(tell[1], b"x" * 50)
        print(answers.count(b"y"), answers.count(b"n"))
    """)
    assert output.split() == ["28", "22"]
    card.wait_until_empty()


def test_of_two_that_ask_at_once_the_one_that_fits_gets_it(card: Card) -> None:
    card.check("""
        import os
        pipes = [(os.pipe(), os.pipe()) for _ in range(2)]
        for (go, _), (_, say) in pipes:
            if os.fork() == 0:
                cuda = Cuda()
                os.write(say, b".")
                while os.read(go, 1) == b"x":
                    address = c_uint64()
                    code = cuda.code("cuMemAlloc_v2", byref(address), c_size_t(3 * GIB))
                    os.write(say, b"y" if code == 0 else b"n")
                    os.read(go, 1)
                    if code == 0:
                        cuda.free(address.value)
                    os.write(say, b".")
                os._exit(0)
        for _ in range(200):
            for _, (heard, _) in pipes:
                assert os.read(heard, 1) == b"."
            for (_, tell), _ in pipes:
                os.write(tell, b"x")
            answers = sorted(os.read(heard, 1) for _, (heard, _) in pipes)
            assert answers == [b"n", b"y"], answers
            for (_, tell), _ in pipes:
                os.write(tell, b"x")
        for (_, tell), (heard, _) in pipes:
            os.read(heard, 1)
            os.write(tell, b"q")
    """)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_what_a_dead_process_held_comes_back_a_little_later(tmp_path: Path, end: signal.Signals) -> None:
    card = Card("sim:1x5GiB", tmp_path, free_delay=2.0)
    try:
        process = card.python(HOLDER, "100")
        read_until(process, "holding")
        assert process.pid in card.gpus()[0]["held"]
        process.send_signal(end)
        process.wait()
        died = time.monotonic()
        assert process.pid in card.gpus()[0]["held"]
        card.wait_until_empty()
        assert time.monotonic() - died >= 2.0
        assert card.gpus()[0]["held"] == {}
    finally:
        card.close()


def test_a_frozen_process_holds_up_nobody(card: Card) -> None:
    busy = card.python("""
from tests.support.cuda import *
cuda = Cuda()
print("busy", flush=True)
while True:
    cuda.free(cuda.alloc(500 * MIB))
""")
    read_until(busy, "busy")
    for _ in range(50):  # wherever it is stopped
        busy.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        assert card.gpus()[0]["used"] >= CONTEXT
        assert time.monotonic() - began < 20
        busy.send_signal(signal.SIGCONT)
    busy.send_signal(signal.SIGSTOP)
    assert card.run("--bytes", "4GiB", "--check", "1m").returncode == 0


def test_exec_and_a_surviving_child_keep_nothing(card: Card) -> None:
    process = card.python("""
import os
from tests.support.cuda import *
cuda = Cuda()
cuda.alloc(100 * MIB)
child = os.fork()
if child == 0:
    os.execvp("sleep", ["sleep", "60"])           # outlives its parent's memory
print(child, flush=True)
input()
os.execvp("sleep", ["sleep", "60"])
""")
    assert process.stdin is not None
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        assert card.used() == CONTEXT + 100 * MIB
        process.stdin.write("\n")
        process.stdin.flush()
        card.wait_until_empty()
        assert process.poll() is None
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_process_that_closes_every_descriptor_loses_its_memory_and_harms_nobody(card: Card) -> None:
    other = hold(card, 100)
    process = card.python("""
import os
from tests.support.cuda import *
cuda = Cuda()
address = cuda.alloc(200 * MIB)
os.closerange(3, 1000)
print("closed", flush=True)
input()                                       # meanwhile it is taken for dead
assert cuda.code("cuMemAlloc_v2", byref(c_uint64()), c_size_t(2 * MIB)) == OUT_OF_MEMORY
cuda.free(address)
""")
    read_until(process, "closed")
    held = {other: CONTEXT + 100 * MIB}
    until(lambda: card.gpus()[0]["held"] == held)
    process.communicate("go on\n", timeout=60)
    assert process.returncode == 0
    assert card.gpus()[0]["held"] == held


@pytest.mark.parametrize("card", ["sim:3x1GiB"], indirect=True)
def test_visible_devices_by_index_and_uuid(card: Card) -> None:
    uuids = [gpu["uuid"] for gpu in card.gpus()]

    def seen(value: str) -> list[str]:
        return card.check(
            """
            try:
                cuda = Cuda(device=None)
            except Failed as failed:
                assert failed.code == 100
                raise SystemExit
            count, uuid = c_int(), create_string_buffer(16)
            cuda("cuDeviceGetCount", byref(count))
            for device in range(count.value):
                cuda("cuDeviceGetUuid_v2", uuid, device)
                print(uuid.raw.hex())
            """,
            CUDA_VISIBLE_DEVICES=value,
        ).split()

    plain = [uuid.removeprefix("GPU-").replace("-", "") for uuid in uuids]
    assert seen("0,1,2") == plain
    assert seen("2,0") == [plain[2], plain[0]]
    assert seen(f"{uuids[1]},{uuids[2][:12]}") == [plain[1], plain[2]]
    assert seen("1,7,0") == [plain[1]]  # the first that does not exist ends the list
    assert seen("1,1") == []
    assert seen("") == []
    assert seen("-1") == []


@pytest.mark.parametrize("card", ["sim:2x1GiB"], indirect=True)
def test_cards_are_separate(card: Card) -> None:
    process = card.start("--bytes", "512m", "--hold", "60", "--check", "1m", "--gpu", "1")
    read_until(process, "holding")
    first, second = card.gpus()
    assert first["used"] == 0
    assert second["held"] == {process.pid: 512 * MIB + CONTEXT}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make namespaces")
def test_in_another_pid_namespace_the_host_sees_the_hosts_pid(card: Card) -> None:
    words = ["unshare", "--pid", "--fork", "--mount-proc", str(BUILD / "workload")]
    process = card.popen([*words, "--bytes", "100m", "--hold", "60"], stdout=subprocess.PIPE)
    read_until(process, "holding")
    (pid,) = card.gpus()[0]["held"]
    assert Path(f"/proc/{pid}/comm").read_text().strip() == "workload"
    status = Path(f"/proc/{pid}/status").read_text()
    assert re.search(rf"^NSpid:\s+{pid}\s+1$", status, re.MULTILINE)
    os.kill(pid, signal.SIGKILL)
    card.wait_until_empty()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make namespaces")
def test_a_root_file_system_with_nothing_else_in_it_is_enough(card: Card, tmp_path: Path) -> None:
    root = tmp_path / "root"
    needed = subprocess.run(["ldd", str(BUILD / "workload")], capture_output=True, text=True, check=True).stdout
    files = re.findall(r"(/\S+) \(0x", needed)
    files += re.findall(r"(/\S+) \(0x", subprocess.check_output(["ldd", str(BUILD / "sim/libcuda.so.1")], text=True))
    for name in {*files}:
        (root / name[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(name, root / name[1:])
    for folder in ("lib/sim", "card", "proc"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    shutil.copy(BUILD / "workload", root / "workload")
    shutil.copy(BUILD / "sim/libcuda.so.1", root / "lib/sim")
    script = f"mount --bind {card.path.parent} {root}/card && exec chroot {root} /workload --bytes 10m --chunks 1"
    result = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "sh", "-c", script],
        env={**os.environ, "GPUSHARE_SIM": "/card/state", "LD_LIBRARY_PATH": "/lib/sim"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "every byte is right" in result.stdout


@pytest.mark.parametrize("name", ["sim/libcuda.so.1", "sim/libnvidia-ml.so.1", "workload"])
def test_no_symbol_is_newer_than_glibc_2_17(name: str) -> None:
    symbols = subprocess.check_output(["objdump", "-T", str(BUILD / name)], text=True)
    versions = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([\d.]+)", symbols)}
    assert versions
    assert max(versions) <= (2, 17)


@pytest.mark.parametrize("text", ["sim", "sim:", "sim:0x", "sim:axb", "sim:1x5XiB", "nvidia", "sim:1x-5GiB"])
def test_a_description_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a simulated card"):
        shim.sim.parse(text)


def test_impossible_cards_and_files_are_refused(tmp_path: Path) -> None:
    for text in ("sim:0x5GiB", "sim:17x5GiB", "sim:1x1MiB", "sim:1x99999TiB"):
        with pytest.raises(OSError, match="cannot make the simulated card"):
            shim.sim.create(text, tmp_path / "card" / text.replace(":", ""), BUILD)
    (tmp_path / "taken").write_text("")
    with pytest.raises(FileExistsError):
        shim.sim.create("sim:5g", tmp_path / "taken", BUILD)


def test_one_process_looks_at_one_card_after_another(tmp_path: Path) -> None:
    for name in ("sim:1x1GiB", "sim:2x2GiB"):
        shim.sim.create(name, tmp_path / name, BUILD)
    script = """if True:
        import os, sys, shim.sim
        from pathlib import Path
        shim.sim.load_nvml(Path(sys.argv[1]))
        import pynvml
        for card in ("none", "sim:1x1GiB", "sim:2x2GiB"):
            os.environ["GPUSHARE_SIM"] = os.path.join(sys.argv[2], card)
            try:
                pynvml.nvmlInit()
            except pynvml.NVMLError_DriverNotLoaded:
                print("not loaded")
            else:
                print(pynvml.nvmlDeviceGetCount())
                pynvml.nvmlShutdown()
    """
    words = [sys.executable, "-c", script, str(BUILD), str(tmp_path)]
    assert subprocess.check_output(words, text=True, cwd=ROOT).split("\n") == ["not loaded", "1", "2", ""]


def test_a_card_that_was_cut_off_can_be_left(tmp_path: Path) -> None:
    shim.sim.create("sim:1x1GiB", tmp_path / "card", BUILD)
    script = """if True:
        import os, sys, shim.sim
        from pathlib import Path
        shim.sim.load_nvml(Path(sys.argv[1]))
        import pynvml
        pynvml.nvmlInit()
        os.truncate(os.environ["GPUSHARE_SIM"], 0)
        pynvml.nvmlShutdown()
    """
    words = [sys.executable, "-c", script, str(BUILD)]
    environment = {**os.environ, "GPUSHARE_SIM": str(tmp_path / "card")}
    assert subprocess.run(words, cwd=ROOT, env=environment, check=False).returncode == 0


def test_descriptions() -> None:
    assert shim.sim.parse("sim:2x5GiB") == (2, 5 << 30)
    assert shim.sim.parse("sim:512m") == (1, 512 << 20)


def test_it_has_all_of_its_room_from_the_start(card: Card) -> None:
    """Else on a disk that fills up later whoever first comes to a page of it ends by SIGBUS."""
    made = card.path.stat()
    assert made.st_blocks * 512 >= made.st_size
