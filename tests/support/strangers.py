"""Programs of strangers at the web server's port, who would keep everybody else out: for tests.

Each is given the port, comes from many addresses (all of 127.0.0.0/8 is this host's), says "attacking" when it has done
its worst a few times, and goes on until it is killed.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_BEGIN = """
import contextlib, itertools, random, socket, sys, time
port, rounds = map(int, sys.argv[1:])  # what is done before it is printed
turns, kept = itertools.count(1), []
MOST = 900  # connections that are kept

def connect(keep=True):
    for _ in itertools.repeat(None):
        host = f"127.{random.randint(1, 99)}.{random.randint(0, 255)}.{random.randint(1, 254)}"
        try:
            made = socket.create_connection(("127.0.0.1", port), timeout=5, source_address=(host, 0))
        except OSError:
            time.sleep(0.01)
            continue
        if keep:
            kept.append(made)
            if len(kept) > MOST:
                kept.pop(0).close()
        return made

def done():
    if next(turns) == rounds:
        print("attacking", flush=True)

def ask(head, body=b""):
    made = connect(keep=False)
    try:
        made.sendall(head + b"\\r\\nHost: localhost\\r\\n" + body)
        while made.recv(1 << 16):
            pass
    except OSError:
        pass
    made.close()
    done()

OWN = b"localhost:%d" % port
UPGRADE = (b"\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Version: 13\\r\\n"
           b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\\r\\n")
POST = b" HTTP/1.1\\r\\nHost: localhost\\r\\n"
END = b"Connection: close\\r\\n\\r\\n"
def rubbish(size):
    return random.randbytes(size // 2).hex().encode()
"""

_FOR_EVER = "while True:\n"

STRANGERS = {
    "half requests": """
    connect().sendall(b"GET /login/ HTTP/1.1\\r\\nHost: localhost\\r\\nX-Half: ")
    done()
""",
    "bodies without an end": """
    made = connect(keep=False)
    try:
        made.sendall(b"POST /api/v1/containers/" + POST + b"Transfer-Encoding: chunked\\r\\n\\r\\n")
        for _ in range(1000):
            made.sendall(b"10000\\r\\n" + bytes(65536) + b"\\r\\n")
    except OSError:
        pass
    made.close()
    done()
""",
    "bodies that do not come": """
    connect().sendall(b"POST /login/" + POST + b"Content-Length: 30000\\r\\n\\r\\n" + bytes(20000))
    done()
""",
    "cookies and tokens": """
    cookie = b"; ".join(b"sessionid=" + rubbish(32) for _ in range(100))
    ask(b"GET / HTTP/1.1", b"Cookie: " + cookie + b"\\r\\nAuthorization: Token " + rubbish(4000) + b"\\r\\n" + END)
""",
    "paths that are not there": """
    for path in (rubbish(60), b"api/v1/" + rubbish(60), b"static/../../../etc/passwd", b"%00", b"%ed%a0%80",
                 b"static/%2e%2e/%2e%2e/etc/passwd", rubbish(8000), b"containers/" + rubbish(32) + b"/",
                 b"?" + rubbish(9000)):
        ask(b"GET /" + path + b" HTTP/1.1", END)
""",
    "WebSockets": """
    made = connect()
    path = random.choice([b"/ws/dashboard/", b"/ws/" + rubbish(20)])
    origin = random.choice([OWN, b"elsewhere.example", b"localhost:1"])
    made.sendall(b"GET " + path + b" HTTP/1.1\\r\\nHost: " + OWN + UPGRADE)
    made.sendall(b"Origin: http://" + origin + b"\\r\\n\\r\\n")
    with contextlib.suppress(OSError):
        made.sendall(b"\\x81\\xfe\\x03\\xe8\\0\\0\\0\\0" + b"[" * 1000)
        made.sendall(b"\\x81\\x82\\0\\0\\0\\0{}" * 5000)
    done()
""",
    "guesses": """
    body = b'{"username": "admin", "password": "' + rubbish(16) + b'"}'
    ask(b"POST /api/v1/sign-in/ HTTP/1.1",
        b"Content-Type: application/json\\r\\nContent-Length: %d\\r\\n" % len(body) + END + body)
""",
    "no HTTP": """
    made = connect()
    with contextlib.suppress(OSError):
        made.sendall(random.choice([b"\\x16\\x03" + rubbish(500), rubbish(5000), b"GET\\r\\n\\r\\n", bytes(70000)]))
    done()
""",
}


ROUNDS = {"guesses": 10, "bodies without an end": 30}  # of those that cost the server most; of the others 60


@contextmanager
def stranger(name: str, port: str) -> Iterator[subprocess.Popen[bytes]]:
    """It attacks until the end of the block."""
    program = _BEGIN + _FOR_EVER + STRANGERS[name]
    words = [sys.executable, "-c", program, port, str(ROUNDS.get(name, 60))]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, env=dict(os.environ))
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), "the attack did not begin"
        yield process
    finally:
        process.kill()
        with suppress(ValueError):
            process.communicate()
