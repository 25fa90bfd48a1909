"""What NVML tells inside a container: the quota as the card."""

import json
import subprocess
import sys

import pytest

from tests.support.card import BUILD, CONTEXT, MIB
from tests.support.program import Program

NVML = """
import json, sys
nvml = ctypes.CDLL("libnvidia-ml.so.1")
class V1(ctypes.Structure):
    _fields_ = [(n, ctypes.c_ulonglong) for n in ("total", "free", "used")]
class V2(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint)] + [(n, ctypes.c_ulonglong) for n in ("total", "reserved", "free", "used")]
assert nvml.nvmlInit_v2() == 0
device, one, two = ctypes.c_void_p(), V1(), V2(version=ctypes.sizeof(V2) | 2 << 24)
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
codes = [nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(one)), nvml.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(two)),
         nvml.nvmlDeviceGetMemoryInfo(device, None)]
answer = codes, [one.total, one.free, one.used], [two.total, two.free, two.used]
"""  # noqa: E501


def test_nvml_reports_quota_and_claim(grants, program):
    cuda = program(grants)
    cuda.use()
    cuda.new("cuMemAlloc_v2", 100 * MIB)
    codes, one, two = cuda.run(NVML)
    used = CONTEXT + 100 * MIB
    assert codes[:2] == [0, 0]
    assert codes[2] != 0
    assert one == two == [1024 * MIB, 1024 * MIB - used, used]


def test_a_program_that_only_looks_sees_the_whole_container(grants, program):
    """As nvidia-smi does."""
    cuda, smi = program(grants), program(grants)
    cuda.use()
    grants.only_peer().page[0].elsewhere = 0
    smi.run("answer = 1")
    _, one, _ = smi.run(NVML)
    assert one[0] == 1024 * MIB
    next(peer for peer in grants.peers if peer.pid == smi.pid).page[0].elsewhere = CONTEXT
    assert smi.run(NVML)[1] == [1024 * MIB, 1024 * MIB - CONTEXT, CONTEXT]


def test_without_a_scheduler_nvml_tells_nothing(card, tmp_path):
    env = {"GPUSHARE_SOCKET": str(tmp_path / "none"), "LD_PRELOAD": str(BUILD / "libgpushare.so")}
    codes, *_ = Program(card, env).run(NVML)
    assert codes[0] == codes[1] == 4  # NVML_ERROR_NO_PERMISSION


def test_pynvml_sees_it(grants, card):
    code = (
        "import pynvml, json; pynvml.nvmlInit(); h = pynvml.nvmlDeviceGetHandleByIndex(0);"
        "print(json.dumps([pynvml.nvmlDeviceGetMemoryInfo(h).total, pynvml.nvmlDeviceGetMemoryInfo(h, 2).total]))"
    )
    run = subprocess.run([sys.executable, "-c", code], env=card.env(**grants.env()), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == [1024 * MIB] * 2


@pytest.mark.parametrize("quota", [64 * 1024 * MIB])
def test_a_quota_above_the_card_shows_the_card(grants_of, program, card, quota):
    cuda = program(grants_of(quota=quota))
    cuda.use()
    assert cuda("cuDeviceTotalMem_v2", {"out": 0}, 0) == [card.gpus()[0]["total"]]


def test_the_32_bit_reports(grants, program):
    cuda = program(grants)
    cuda.use()
    assert cuda("cuDeviceTotalMem", {"out": 0}, 0) == [1024 * MIB]
    assert cuda("cuMemGetInfo", {"out": 0}, {"out": 0}) == [1024 * MIB - CONTEXT, 1024 * MIB]
    assert cuda("cuMemGetInfo", None, {"out": 0}) == [1024 * MIB]


def test_mem_get_info_asks_the_driver_for_the_context_only(cuda):
    calls = cuda.run("""
free, total = ctypes.c_size_t(), ctypes.c_size_t()
lib.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
lib.sim_all_calls.restype = ctypes.c_uint64
before = lib.sim_all_calls()
for _ in range(100):
    lib.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
answer = lib.sim_all_calls() - before
""")
    assert calls == 100
