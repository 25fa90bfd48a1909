"""Makes one CUDA context on the GPU that its argument names (16 bytes of UUID, in hex), says so, and waits for its end.

Run as a short-lived child per GPU (gpus.py), so that what a context takes can be read off the card. Standard library
only: it is started with `python -I -S`.
"""

import ctypes
import sys

cuda = ctypes.CDLL("libcuda.so.1")


def check(function: str, *arguments: object) -> None:
    if code := getattr(cuda, function)(*arguments):
        sys.exit(f"{function} failed with CUDA error {code}")


def main(wanted: bytes) -> None:
    check("cuInit", 0)
    count = ctypes.c_int()
    check("cuDeviceGetCount", ctypes.byref(count))
    for device in range(count.value):
        uuid = ctypes.create_string_buffer(16)
        check("cuDeviceGetUuid", uuid, device)
        if uuid.raw == wanted:
            check("cuDevicePrimaryCtxRetain", ctypes.byref(ctypes.c_void_p()), device)
            print("ready", flush=True)
            sys.stdin.read()
            return
    sys.exit("CUDA does not show this GPU")


main(bytes.fromhex(sys.argv[1]))
