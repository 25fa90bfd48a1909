"""CUDA's structures as bytes, for calls made through tests.support.program."""

import struct

NOWHERE, DEVICE, HOST = 0, 1, 2  # CU_MEM_LOCATION_TYPE_…
PINNED, MANAGED = 1, 2  # CU_MEM_ALLOCATION_TYPE_…
RELEASE_THRESHOLD, RESERVED = 4, 5  # CU_MEMPOOL_ATTR_…
SPARSE, DEFERRED = 0x40, 0x80  # CUDA_ARRAY3D_…
FLOAT = 0x20  # CU_AD_FORMAT_FLOAT


def _bytes(data: bytes) -> dict[str, str]:
    return {"bytes": data.hex()}


def allocation(device: int = 0, kind: int = DEVICE, handle_type: int = 0) -> dict[str, str]:
    """CUmemAllocationProp of pinned memory."""
    return _bytes(struct.pack("iiiiP8x", 1, handle_type, kind, device, 0))


def pool(
    device: int = 0, kind: int = DEVICE, handle_type: int = 0, type_: int = PINNED, most: int = 0
) -> dict[str, str]:
    """CUmemPoolProps; `most` in bytes, 0: as much as there is."""
    return _bytes(struct.pack("iiiiPNH54x", type_, handle_type, kind, device, 0, most, 0))


def location(device: int = 0, kind: int = DEVICE) -> dict[str, str]:
    return _bytes(struct.pack("ii", kind, device))


def access(device: int = 0, flags: int = 3) -> dict[str, str]:
    """CUmemAccessDesc: read and write."""
    return _bytes(struct.pack("iii", DEVICE, device, flags))


def array(width: int, height: int = 0, channels: int = 1) -> dict[str, str]:
    return _bytes(struct.pack("NNiI", width, height, FLOAT, channels))


def array_v1(width: int, height: int = 0, channels: int = 1) -> dict[str, str]:
    return _bytes(struct.pack("IIiI", width, height, FLOAT, channels))


def array3d(width: int, height: int = 0, depth: int = 0, channels: int = 1, flags: int = 0) -> dict[str, str]:
    return _bytes(struct.pack("NNNiII4x", width, height, depth, FLOAT, channels, flags))


def array3d_v1(width: int, height: int = 0, depth: int = 0, channels: int = 1, flags: int = 0) -> dict[str, str]:
    return _bytes(struct.pack("IIIiII", width, height, depth, FLOAT, channels, flags))


def allocation_node(size: int, device: int = 0) -> dict[str, str]:
    """CUDA_MEM_ALLOC_NODE_PARAMS; the address comes back in its last eight bytes."""
    return _bytes(struct.pack("iiiiPNH54xPNNQ", 1, 0, DEVICE, device, 0, 0, 0, 0, 0, size, 0))


def node_address(parameters: str) -> int:
    return struct.unpack("Q", bytes.fromhex(parameters)[-8:])[0]


def any_node(kind: int, parameters: dict[str, str]) -> dict[str, str]:
    """CUgraphNodeParams."""
    return _bytes(struct.pack("i12x", kind) + bytes.fromhex(parameters["bytes"]).ljust(232, b"\0") + bytes(8))


def tile(array: int, handle: int = 0, *, unmap: bool = False) -> dict[str, str]:
    """CUarrayMapInfo of a whole array."""
    return _bytes(struct.pack("i4xPi4x32xiiQQII8x", 0, array, 0, 2 if unmap else 1, 0, handle, 0, 1, 0))
