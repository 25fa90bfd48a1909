"""The memory calls of the simulated driver behave as CUDA's do."""

from tests.support.card import Card


def test_small_requests_share_a_block_of_2_mib(card: Card) -> None:
    card.check("""
        cuda = Cuda()
        before = cuda.free_bytes()
        first = cuda.alloc(4096)
        assert before - cuda.free_bytes() == 2 * MIB
        more = [cuda.alloc(4096) for _ in range(511)]
        assert before - cuda.free_bytes() == 2 * MIB
        more.append(cuda.alloc(4096))
        assert before - cuda.free_bytes() == 4 * MIB
        assert len({first, *more}) == 513
        assert all(cuda.free(address) == 0 for address in [first, *more])
        assert cuda.free_bytes() == before
    """)


def test_bigger_requests_are_whole_blocks(card: Card) -> None:
    card.check("""
        cuda = Cuda()
        before = cuda.free_bytes()
        address = cuda.alloc(2 * MIB + 1)
        assert before - cuda.free_bytes() == 4 * MIB
        cuda.write(address + 2 * MIB - 3, b"last")
        assert cuda.read(address + 2 * MIB - 3, 4) == b"last"
        assert cuda.code("cuMemcpyHtoD_v2", c_uint64(address + 2 * MIB - 2), b"last", c_size_t(4)) == INVALID_VALUE
    """)


def test_wrong_frees_are_refused_and_change_nothing(card: Card) -> None:
    card.check("""
        cuda = Cuda()
        small, big = cuda.alloc(1000), cuda.alloc(8 * MIB)
        before = cuda.free_bytes()
        for wrong in (small + 512, big + 2 * MIB, big + 512, 12345, 1 << 63, (1 << 64) - 1):
            assert cuda.free(wrong) == INVALID_VALUE, hex(wrong)
        assert cuda.free_bytes() == before
        assert cuda.free(0) == 0
        assert cuda.free(small) == cuda.free(big) == 0
        assert cuda.free(small) == cuda.free(big) == INVALID_VALUE
    """)


def test_impossible_sizes(card: Card) -> None:
    card.check("""
        cuda = Cuda()
        address = c_uint64()
        for size in (5 * GIB, 6 * GIB, 1 << 63, (1 << 64) - 1):
            assert cuda.code("cuMemAlloc_v2", byref(address), c_size_t(size)) == OUT_OF_MEMORY
            assert cuda.code("cuMemAllocAsync", byref(address), c_size_t(size), None) == OUT_OF_MEMORY
        assert cuda.code("cuMemAlloc_v2", byref(address), c_size_t(0)) == INVALID_VALUE
        assert cuda.code("cuMemAlloc_v2", None, c_size_t(1)) == INVALID_VALUE
        assert cuda.code("cuMemGetInfo_v2", None, None) == 0
        pitch = c_size_t()
        call = ("cuMemAllocPitch_v2", byref(address), byref(pitch))
        assert cuda.code(*call, c_size_t((1 << 64) - 1), c_size_t(2), 4) == OUT_OF_MEMORY
        assert cuda.code(*call, c_size_t(1000), c_size_t(10), 5) == INVALID_VALUE
        assert cuda.code(*call, c_size_t(1000), c_size_t(10), 4) == 0
        assert pitch.value == 1024
    """)


def test_before_cuinit_and_without_a_context(card: Card) -> None:
    card.check("""
        library = ctypes.CDLL("libcuda.so.1")
        address = c_uint64()
        assert library.cuMemAlloc_v2(byref(address), c_size_t(1)) == NOT_INITIALIZED
        cuda = Cuda(device=None)
        assert cuda.code("cuMemAlloc_v2", byref(address), c_size_t(1)) == 201
    """)


def test_a_forked_child_cannot_use_its_parents_card(card: Card) -> None:
    card.check("""
        import os
        cuda = Cuda()
        address = cuda.alloc(MIB)
        child = os.fork()
        if child == 0:
            fine = cuda.code("cuInit", 0) == NOT_INITIALIZED
            fine = fine and cuda.code("cuMemAlloc_v2", byref(c_uint64()), c_size_t(1)) == NOT_INITIALIZED
            os._exit(0 if fine and cuda.free(address) == NOT_INITIALIZED else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert cuda.free(address) == 0
    """)


def test_managed_memory_is_the_hosts_too(card: Card) -> None:
    card.check("""
        cuda = Cuda()
        address = c_uint64()
        cuda("cuMemAllocManaged", byref(address), c_size_t(3 * MIB), 1)
        ctypes.memset(address.value, 7, 3 * MIB)
        assert cuda.read(address.value + 3 * MIB - 2, 2) == bytes([7, 7])
        managed = c_uint()
        cuda("cuPointerGetAttribute", byref(managed), 8, address)
        assert managed.value == 1
    """)


def test_a_modules_variables_live_in_device_memory(card: Card) -> None:
    card.check("""
        cuda = Cuda()
        before = cuda.free_bytes()
        text = b".version 6.0\\n.target sm_50\\n.address_size 64\\n.global .align 8 .b8 table[5242880];\\n"
        module, address, size = c_void_p(), c_uint64(), c_size_t()
        cuda("cuModuleLoadData", byref(module), text)
        assert before - cuda.free_bytes() == 6 * MIB
        cuda("cuModuleGetGlobal_v2", byref(address), byref(size), module, b"table")
        assert size.value == 5 * MIB
        cuda.write(address.value + 5 * MIB - 4, b"tail")
        cuda("cuModuleUnload", module)
        assert cuda.free_bytes() == before
        assert cuda.code("cuModuleLoadData", byref(module), b"\\x7fELF") == 200
    """)
