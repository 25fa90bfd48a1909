"""The contracts with the kubelet are the kubelet's: names and numbers on the wire, and nothing stale."""

import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.kubernetes.api import quantity
from scheduler.kubernetes.kubelet import contracts
from tests.support.host import ROOT

FOLDER = Path(contracts.__file__).parent


def test_what_is_kept_is_what_the_proto_files_say(tmp_path: Path) -> None:
    made = tmp_path / "contracts.pb"
    files = sorted(path.name for path in FOLDER.glob("*.proto"))
    words = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--descriptor_set_out={made}", *files]
    subprocess.run(words, cwd=FOLDER, check=True)
    assert made.read_bytes() == (FOLDER / "contracts.pb").read_bytes(), "after a change: make protocols"


FORKS = """
import asyncio, os, sys
from scheduler.kubernetes.kubelet import contracts  # before gRPC: it says how that should be
import grpc
from google.protobuf.internal import api_implementation

def fork():
    if not (child := os.fork()):
        os._exit(0)
    return os.waitpid(child, 0)[1]

async def serve():
    server = grpc.aio.server()
    server.add_insecure_port(f"unix:{sys.argv[1]}")
    await server.start()
    for _ in range(150):
        async with grpc.aio.insecure_channel(f"unix:{sys.argv[1]}") as channel:
            ended.append((await asyncio.gather(asyncio.to_thread(fork), channel.channel_ready()))[0])
    await server.stop(None)

ended = []
assert api_implementation.Type() == "python", api_implementation.Type()
asyncio.run(serve())
assert not any(ended), ended
"""


def test_no_part_in_c_reads_messages_and_a_fork_is_no_crash(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FORKS, tmp_path / "s"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-1000:]


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_prepared_claim_looks_on_the_wire_as_the_kubelet_reads_it(version: str) -> None:
    """Byte by byte, by the numbers of k8s.io/kubelet/pkg/apis/dra: field << 3 | 2, length, text."""
    package = f"k8s.io.kubelet.pkg.apis.dra.{version}"
    answer = contracts.message(f"{package}.NodePrepareResourcesResponse")()
    device = answer.claims["u"].devices.add(pool_name="p", device_name="d", cdi_device_ids=["c"])
    device.request_names.append("r")
    inner = b"\x0a\x01r" + b"\x12\x01p" + b"\x1a\x01d" + b"\x22\x01c"
    entry = b"\x0a\x01u" + b"\x12" + bytes([len(inner) + 2]) + b"\x0a" + bytes([len(inner)]) + inner
    assert answer.SerializeToString() == b"\x0a" + bytes([len(entry)]) + entry
    claim = contracts.message(f"{package}.Claim").FromString(b"\x0a\x02ns\x12\x01u\x1a\x04name")
    assert (claim.namespace, claim.uid, claim.name) == ("ns", "u", "name")
    failed = contracts.message(f"{package}.NodeUnprepareResourcesResponse")()
    failed.claims["u"].error = "no"
    assert failed.SerializeToString() == b"\x0a\x09\x0a\x01u\x12\x04\x0a\x02no"


def test_a_driver_presents_itself_by_the_kubelets_numbers() -> None:
    info = contracts.message("pluginregistration.PluginInfo")(
        type="DRAPlugin", name="n", endpoint="/e", supported_versions=["v1.DRAPlugin"]
    )
    assert info.SerializeToString() == b"\x0a\x09DRAPlugin\x12\x01n\x1a\x02/e\x22\x0cv1.DRAPlugin"
    message = contracts.message("pluginregistration.RegistrationStatus").FromString(b"\x08\x01\x12\x03why")
    assert (message.plugin_registered, message.error) == (True, "why")


def test_the_services_have_the_kubelets_names_and_methods() -> None:
    for name in contracts.DRA.values():
        assert [each.name for each in contracts.service(name).methods] == [
            "NodePrepareResources", "NodeUnprepareResources",
        ]  # fmt: skip
    assert [each.name for each in contracts.service(contracts.REGISTRATION).methods] == [
        "GetInfo", "NotifyRegistrationStatus",
    ]  # fmt: skip
    methods = {each.name: each for each in contracts.service("v1beta1.DevicePlugin").methods}
    assert methods["ListAndWatch"].server_streaming
    assert not methods["Allocate"].server_streaming


def test_amounts_are_read_as_kubernetes_writes_them() -> None:
    said = {"4Gi": 4 << 30, "1500M": 1_500_000_000, "0.5Gi": 1 << 29, "1e9": 10**9, "12E": 12 * 10**18, "1": 1}
    assert {text: quantity.read(text) for text in said} == said
    assert quantity.read("1500m") == 2  # rounded up, as Kubernetes rounds
    for odd in ("", "4GiB", "Gi", "four", "--1", True, None, 4.5, "1" * 50):
        with pytest.raises(ValueError, match="is not an amount of memory such as 4Gi"):
            quantity.read(odd)
    assert quantity.write((5 << 30) - 1) == "5119Mi"
