"""A connection that breaks after the appliance has done what it was asked, and before it could say so."""

import select
import socket
import socketserver
import threading

import pytest

from tests.cli.support import gpushare

LAUNCH = b"POST /api/v1/containers/ "


class Line(socketserver.ThreadingTCPServer):
    """Carries bytes between the command line and the appliance, and breaks before the answer to the first launch."""

    daemon_threads = True

    def __init__(self, port):
        super().__init__(("127.0.0.1", 0), Carrier)
        self.upstream = ("127.0.0.1", port)
        self.launches = 0


class Carrier(socketserver.BaseRequestHandler):
    def handle(self):
        with socket.create_connection(self.server.upstream) as appliance:
            breaks = False
            while True:
                for source in select.select([self.request, appliance], [], [])[0]:
                    data = source.recv(65536)
                    if not data or (breaks and source is appliance):
                        return
                    if source is self.request and data.startswith(LAUNCH):
                        self.server.launches += 1
                        breaks = self.server.launches == 1
                    (appliance if source is self.request else self.request).sendall(data)


@pytest.fixture
def line(appliance):
    with Line(int(appliance.port)) as line:
        serving = threading.Thread(target=line.serve_forever, kwargs={"poll_interval": 0.05})
        serving.start()
        yield line
        line.shutdown()
        serving.join()


def test_a_launch_whose_answer_was_lost_is_asked_for_again_and_happens_once(appliance, line):
    through = appliance.environ | {"GPUSHARE_URL": f"http://127.0.0.1:{line.server_address[1]}"}
    done = gpushare("run", "--name", "only", "local", "echo", "hello", environ=through)
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")
    assert line.launches == 2
    assert len(appliance.containers(name="only")) == 1
