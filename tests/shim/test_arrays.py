"""Arrays are charged by their true size."""

import pytest

from tests.support import layouts
from tests.support.card import MIB

CREATE = [
    ("cuArrayCreate_v2", [layouts.array(1024, 1000)]),
    ("cuArrayCreate", [layouts.array_v1(1024, 1000)]),
    ("cuArray3DCreate_v2", [layouts.array3d(256, 100, 40)]),
    ("cuArray3DCreate", [layouts.array3d_v1(256, 100, 40)]),
]


@pytest.mark.parametrize(("name", "arguments"), CREATE, ids=[name for name, _ in CREATE])
@pytest.mark.parametrize("way", ["dlsym", "linked"])
def test_an_array_is_charged_until_it_is_destroyed(cuda, charged, name, arguments, way):
    array = cuda.new(name, *arguments, way=way)
    assert charged(cuda) >= 4 * MIB
    cuda("cuArrayDestroy", array)
    assert charged(cuda) == 0


def test_a_mipmapped_array(cuda, charged):
    mipmap = cuda.new("cuMipmappedArrayCreate", layouts.array3d(1024, 1024), 5)
    assert charged(cuda) >= 5 * MIB
    cuda("cuMipmappedArrayDestroy", mipmap)
    assert charged(cuda) == 0


def test_an_array_whose_memory_is_mapped_later_takes_nothing(cuda, charged):
    cuda.new("cuArray3DCreate_v2", layouts.array3d(1024, 1024, flags=layouts.DEFERRED))
    assert charged(cuda) == 0


def test_arrays_go_with_their_context(cuda, charged):
    cuda.new("cuArray3DCreate_v2", layouts.array3d(1024, 1024))
    cuda("cuDevicePrimaryCtxReset_v2", 0)
    cuda.use()
    assert charged(cuda) == 0


@pytest.mark.parametrize("shape", [(0, 0, 0), (2**63, 2**40, 2**40)])
def test_shapes_that_make_no_sense(cuda, charged, shape):
    assert cuda.result("cuArray3DCreate_v2", {"out": 0}, layouts.array3d(*shape)) != 0
    assert cuda.result("cuArray3DCreate_v2", None, layouts.array3d(16, 16)) != 0
    assert cuda.result("cuArray3DCreate_v2", {"out": 0}, None) != 0
    assert cuda.result("cuArrayDestroy", 0) != 0
    assert charged(cuda) == 0


@pytest.mark.parametrize("name", ["cuMemMapArrayAsync", "cuMemMapArrayAsync_ptsz"])
@pytest.mark.parametrize("end", ["unmap", "destroy"])
def test_memory_mapped_into_an_array_is_charged_until_it_is_unmapped(cuda, charged, name, end):
    array = cuda.new("cuArray3DCreate_v2", layouts.array3d(1024, 1024, flags=layouts.DEFERRED))
    handle = cuda.new("cuMemCreate", 4 * MIB, layouts.allocation(), 0)
    cuda(name, layouts.tile(array, handle), 1, 0)
    cuda("cuMemRelease", handle)
    assert charged(cuda) == 4 * MIB
    if end == "unmap":
        cuda(name, layouts.tile(array, unmap=True), 1, 0)
    else:
        cuda("cuArrayDestroy", array)
    assert charged(cuda) == 0
