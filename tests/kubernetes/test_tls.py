"""The API server speaks TLS: its certificate has to be of the authority that the service account names."""

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from scheduler.kubernetes.api.client import Api, ApiAway
from tests.kubernetes.cluster.api_server import NODES, TOKEN, ApiServer

NODE = "/api/v1/nodes/node-1"
NAME = ["-subj", "/CN=api", "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:TRUE"]


def certificate(folder: Path) -> tuple[str, str]:
    """A certificate for the address of the tests, and its key; it is its own authority."""
    folder.mkdir()
    files = folder / "tls.crt", folder / "tls.key"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *NAME]
    subprocess.run([*words, "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    return str(files[0]), str(files[1])


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    found = ApiServer()
    found.tls = certificate(tmp_path / "server")
    await found.put(NODES, "node-1", {})
    await found.start()
    yield found
    await found.stop()


def account(folder: Path, authority: str) -> Path:
    folder.mkdir()
    (folder / "token").write_text(TOKEN)
    (folder / "ca.crt").write_text(Path(authority).read_text())
    return folder


async def test_the_authority_of_the_service_account_is_the_one_that_counts(server: ApiServer, tmp_path: Path) -> None:
    assert server.tls is not None
    api = Api(server.url, account(tmp_path / "account", server.tls[0]))
    assert (await api.get(NODE))["metadata"]["name"] == "node-1"
    await api.close()


async def test_a_server_of_another_authority_hears_no_token(server: ApiServer, tmp_path: Path) -> None:
    other = certificate(tmp_path / "other")
    api = Api(server.url, account(tmp_path / "account", other[0]))
    with pytest.raises(ApiAway, match="CERTIFICATE_VERIFY_FAILED"):
        await api.get(NODE)
    await api.close()
    assert server.calls == []


async def test_a_certificate_that_is_not_valid_yet_may_be_this_nodes_clock(tmp_path: Path) -> None:
    assert server_says("certificate verify failed: certificate is not yet valid").endswith("can be this node's clock.")
    assert server_says("certificate verify failed: certificate has expired").endswith("can be this node's clock.")
    assert not server_says("connection refused").endswith("can be this node's clock.")


def server_says(text: str) -> str:
    return str(Api("https://127.0.0.1:1", Path("/nowhere"))._away(OSError(text)))
