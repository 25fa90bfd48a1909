"""A registry for one image, with a password: enough of the distribution API for `docker pull` from 127.0.0.1.

The image says "fetched" when it is run.
"""

import base64
import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LAYER_BYTES = 3 << 20  # enough for Docker to tell how far it is
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _image() -> dict[str, bytes]:
    """Blobs by digest, and the manifest under the name "manifest"."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        entry = tarfile.TarInfo("random")
        entry.size = LAYER_BYTES
        tar.addfile(entry, io.BytesIO(os.urandom(LAYER_BYTES)))
        if busybox := shutil.which("busybox"):
            tar.add(busybox, "bin/echo")
    layer = buffer.getvalue()
    packed = gzip.compress(layer, 1)
    config = json.dumps({
        "architecture": "amd64", "os": "linux",
        "config": {"Labels": {"com.nvidia.memory.limit": "3GiB"}, "Cmd": ["/bin/echo", "fetched"]},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }).encode()  # fmt: skip
    manifest = json.dumps({
        "schemaVersion": 2, "mediaType": MANIFEST,
        "config": {"mediaType": "application/vnd.docker.container.image.v1+json", "size": len(config),
                   "digest": _digest(config)},
        "layers": [{"mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip", "size": len(packed),
                    "digest": _digest(packed)}],
    }).encode()  # fmt: skip
    return {"manifest": manifest, _digest(config): config, _digest(packed): packed}


class Registry:
    """`host` is its name in image references. While `open` is not set, only the first half of a layer is sent."""

    def __init__(self, user: str, password: str) -> None:
        self._blobs = _image()
        self._expected = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        self.manifests_sent = 0
        self.open = threading.Event()
        self.open.set()
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def handle(self) -> None:
                # containerd asks by TLS first, and goes on without where the answer begins as HTTP does.
                if self.rfile.peek(1)[:1] == b"\x16":
                    self.wfile.write(b"HTTP/1.0 400 no TLS here\r\n\r\n")
                else:
                    super().handle()

            def do_GET(self) -> None:
                registry._answer(self)

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server.server_port}"

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        if request.headers.get("Authorization") != self._expected:
            return self._send(request, 401, b'{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}')
        if request.path == "/v2/":
            return self._send(request, 200, b"{}")
        kind, _, name = request.path.removeprefix("/v2/private/").partition("/")
        manifest = self._blobs["manifest"]
        if kind == "manifests" and name in ("latest", "1.0", _digest(manifest)):
            self.manifests_sent += request.command == "GET"
            return self._send(request, 200, manifest, MANIFEST, _digest(manifest))
        if kind == "blobs" and name in self._blobs:
            return self._send(request, 200, self._blobs[name], pause=self.open)
        return self._send(request, 404, b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}')

    @staticmethod
    def _send(
        request: BaseHTTPRequestHandler, status: int, body: bytes, kind: str = "application/json", digest: str = "",
        pause: threading.Event | None = None,
    ) -> None:  # fmt: skip
        request.send_response(status)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(body)))
        request.send_header("Docker-Distribution-Api-Version", "registry/2.0")
        if digest:
            request.send_header("Docker-Content-Digest", digest)
        if status == 401:
            request.send_header("WWW-Authenticate", 'Basic realm="tests"')
        request.end_headers()
        if request.command == "HEAD":
            return
        half = len(body) // 2
        request.wfile.write(body[:half])
        if pause is not None:
            pause.wait()
        request.wfile.write(body[half:])


@contextmanager
def serving(user: str, password: str) -> Iterator[Registry]:
    registry = Registry(user, password)
    thread = threading.Thread(target=registry.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        registry.server.shutdown()
        registry.server.server_close()
        thread.join()
