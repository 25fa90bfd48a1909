"""A program on the simulated card that makes the driver calls it is asked for, one by one.

    cuda = Program(card, env)
    cuda("cuInit", 0)
    address = cuda.new("cuMemAlloc_v2", 4 * MIB)       # the value that the call stored through its first parameter
    assert cuda.result("cuMemFree_v2", address) == 0

Each call is looked up by one of the three ways in: "dlsym" (the default), "linked" or "proc".
"""

import json
import sys
from typing import Any

from tests.support.card import Card

_BODY = """
import ctypes, json, sys, threading, os, queue
MAX = 2**64 - 1
lib = ctypes.CDLL("libcuda.so.1")

class Id(ctypes.Structure):        # ncclUniqueId, which is passed by value
    _fields_ = [("bytes", ctypes.c_ubyte * 128)]
whole = ctypes.CDLL(None)          # what a linked program sees: the preloaded library first

def by_proc(name, version, flags):
    found, status = ctypes.c_void_p(), ctypes.c_int()
    flags = ctypes.c_uint64(flags)
    code = lib.cuGetProcAddress_v2(name.encode(), ctypes.byref(found), version, flags, ctypes.byref(status))
    if code or not found.value:
        raise LookupError(name)
    return ctypes.CFUNCTYPE(ctypes.c_int)(found.value)

def find(name, way):
    if way == "dlsym":
        return getattr(ctypes.CDLL("libnccl.so.2") if name.startswith("nccl") else lib, name)
    if way == "linked":
        return getattr(whole, name)
    base, version, flags = way.split("/")
    return by_proc(base, int(version), int(flags))

def convert(value, kept):
    if isinstance(value, dict):
        if "bytes" in value:
            kept.append(ctypes.create_string_buffer(bytes.fromhex(value["bytes"]), len(value["bytes"]) // 2))
            return kept[-1]
        if "id" in value:
            return Id.from_buffer_copy(bytes.fromhex(value["id"]))
        if "out" in value:
            kept.append(ctypes.c_uint64(value["out"]))
            return ctypes.byref(kept[-1])
    if value is None:
        return ctypes.c_void_p(None)
    return ctypes.c_uint64(value & MAX) if isinstance(value, int) else value

def call(order):
    kept = []
    arguments = [convert(value, kept) for value in order["arguments"]]
    result = find(order["name"], order["way"])(*arguments)
    return {"result": result, "kept": [k.value if isinstance(k, ctypes.c_uint64) else k.raw.hex() for k in kept]}

outcomes = queue.Queue()
def beside(order):
    context = ctypes.c_uint64()
    lib.cuCtxGetCurrent(ctypes.byref(context))
    def work():
        lib.cuCtxSetCurrent(context)
        outcomes.put(call(order)["result"])
    threading.Thread(target=work).start()
    return True

def run(order):
    if order["do"] == "call":
        return call(order)
    if order["do"] == "beside":
        return beside(order)
    if order["do"] == "outcome":
        return outcomes.get(timeout=60)
    if order["do"] == "repeat":
        return [call(order)["result"] for _ in range(order["times"])][-1]
    space = {"lib": lib, "ctypes": ctypes, "call": call, "os": os, "threading": threading}
    exec(order["code"], space)
    return space.get("answer")

out = os.fdopen(os.dup(1), "w")
for line in sys.stdin:
    try:
        reply = run(json.loads(line))
    except Exception as error:
        reply = {"error": repr(error)}
    out.write(json.dumps(reply) + "\\n")
    out.flush()
"""


class Program:
    """A process that makes CUDA driver calls. Ends with the test's card."""

    def __init__(self, card: Card, env: dict[str, str], **options: Any) -> None:
        self.process = card.popen(
            [sys.executable, "-c", _BODY], env=env, stdin=-1, stdout=-1, **({"stderr": -1} | options)
        )
        self.pid = self.process.pid

    def send(self, **order: Any) -> None:
        """Sends an order without waiting for what comes of it."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def receive(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the program ended: {self.process.wait()}: {self.process.stderr and self.process.stderr.read()}"
        reply = json.loads(line)
        assert not isinstance(reply, dict) or "error" not in reply, reply["error"]
        return reply

    def result(self, name: str, *arguments: Any, way: str = "dlsym") -> int:
        """The call's CUresult."""
        self.send(do="call", name=name, arguments=arguments, way=way)
        return self.receive()["result"]

    def __call__(self, name: str, *arguments: Any, way: str = "dlsym") -> list[Any]:
        """A call that must succeed: what it left in its {"out": …} and {"bytes": …} arguments."""
        self.send(do="call", name=name, arguments=arguments, way=way)
        reply = self.receive()
        assert reply["result"] == 0, f"{name} returned {reply['result']}"
        return reply["kept"]

    def new(self, name: str, *arguments: Any, way: str = "dlsym") -> Any:
        """A call that stores something new through its first parameter, like an address."""
        return self(name, {"out": 0}, *arguments, way=way)[0]

    def start_new(self, name: str, *arguments: Any, way: str = "dlsym") -> None:
        """The same, without waiting: `receive` has the outcome."""
        self.send(do="call", name=name, arguments=[{"out": 0}, *arguments], way=way)

    def begin_new(self, name: str, *arguments: Any) -> None:
        """The same in a thread of its own, in this one's context: `ended` has its CUresult."""
        self.send(do="beside", name=name, arguments=[{"out": 0}, *arguments], way="dlsym")
        self.receive()

    def ended(self) -> int:
        self.send(do="outcome")
        return self.receive()

    def run(self, code: str) -> Any:
        """Runs Python code over there (`lib`, `ctypes`, `call`, `os`, `threading`); what it leaves in `answer`."""
        self.send(do="run", code=code)
        return self.receive()

    def use(self, device: int = 0) -> int:
        """Initialises CUDA and makes the device's primary context current."""
        self("cuInit", 0)
        context = self.new("cuDevicePrimaryCtxRetain", device)
        self("cuCtxSetCurrent", context)
        return context

    def end(self) -> str:
        """Lets it end; what it wrote to stderr."""
        _, errors = self.process.communicate()
        assert self.process.returncode == 0, errors
        return errors

    def wait_in_threads(self, context: int, many: int) -> None:
        """So many threads ask for 2 MiB, 4 MiB, 6 MiB …; `receive` has what each got, once all have."""
        self.send(
            do="run",
            code=f"""
results = [None] * {many}
def wait(index):
    out = ctypes.c_uint64()
    lib.cuCtxSetCurrent(ctypes.c_uint64({context}))
    results[index] = lib.cuMemAlloc_v2(ctypes.byref(out), ctypes.c_size_t((2 + 2 * index) << 20))
threads = [threading.Thread(target=wait, args=(index,)) for index in range({many})]
for thread in threads: thread.start()
for thread in threads: thread.join()
answer = results
""",
        )
