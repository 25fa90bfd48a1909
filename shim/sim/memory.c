/* Plain memory: allocate, free, ask, copy, set. Everything is done before the call returns. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

/* The same function under the name that programs built for per-thread default streams use. */
#define ALSO(name, of) extern __typeof__(of) name __attribute__((alias(#of), visibility("default")))

#define PITCH 512ull

bool memory_covers(CUdeviceptr address, uint64_t bytes) {
    struct place place;
    return bytes == 0 || (heap_find(address, &place) && bytes <= place.base + place.bytes - address);
}

static CUresult take(CUdeviceptr *address, uint64_t bytes, enum block_kind kind) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (address == NULL) return CUDA_ERROR_INVALID_VALUE;
    return heap_take(sim_gpu(context->device), context, bytes, kind, address);
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) { return take(address, bytes, BLOCK_DEVICE); }

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element) {
    if (pitch == NULL || (element != 4 && element != 8 && element != 16)) return CUDA_ERROR_INVALID_VALUE;
    uint64_t row, bytes;
    if (__builtin_add_overflow(width, PITCH - 1, &row)) return CUDA_ERROR_OUT_OF_MEMORY;
    row = row / PITCH * PITCH;
    if (__builtin_mul_overflow(row, height, &bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = take(address, bytes, BLOCK_DEVICE);
    if (result == CUDA_SUCCESS) *pitch = row;
    return result;
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned flags) {
    if (flags != 1 && flags != 2) return CUDA_ERROR_INVALID_VALUE; /* attach to all streams, or to the host */
    return take(address, bytes, BLOCK_MANAGED);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS || address == 0) return result;
    return heap_give(address);
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) return result;
    unsigned gpu = sim_gpu(context->device);
    if (free_bytes != NULL) *free_bytes = card_free(gpu) * CARD_UNIT;
    if (total != NULL) *total = card_open()->gpu[gpu].units * CARD_UNIT;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) return result;
    struct place place;
    if (!heap_find(address, &place)) return CUDA_ERROR_NOT_FOUND;
    if (base != NULL) *base = place.base;
    if (bytes != NULL) *bytes = place.bytes;
    return CUDA_SUCCESS;
}

/* ---- copies ---- */

static void *host(CUdeviceptr address) { return (void *)(uintptr_t)address; }

static CUresult copy(CUdeviceptr to, bool to_device, CUdeviceptr from, bool from_device, size_t bytes) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (to_device && !memory_covers(to, bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (from_device && !memory_covers(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
    memmove(host(to), host(from), bytes);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    return copy(to, true, (uintptr_t)from, false, bytes);
}
ALSO(cuMemcpyHtoD_v2_ptds, cuMemcpyHtoD_v2);

EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    return copy((uintptr_t)to, false, from, true, bytes);
}
ALSO(cuMemcpyDtoH_v2_ptds, cuMemcpyDtoH_v2);

EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy(to, true, from, true, bytes);
}
ALSO(cuMemcpyDtoD_v2_ptds, cuMemcpyDtoD_v2);

EXPORT CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy(to, heap_is_ours(to), from, heap_is_ours(from), bytes);
}
ALSO(cuMemcpy_ptds, cuMemcpy);

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    (void)stream;
    return cuMemcpyHtoD_v2(to, from, bytes);
}
ALSO(cuMemcpyHtoDAsync_v2_ptsz, cuMemcpyHtoDAsync_v2);

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    (void)stream;
    return cuMemcpyDtoH_v2(to, from, bytes);
}
ALSO(cuMemcpyDtoHAsync_v2_ptsz, cuMemcpyDtoHAsync_v2);

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    (void)stream;
    return cuMemcpyDtoD_v2(to, from, bytes);
}
ALSO(cuMemcpyDtoDAsync_v2_ptsz, cuMemcpyDtoDAsync_v2);

EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    (void)stream;
    return cuMemcpy(to, from, bytes);
}
ALSO(cuMemcpyAsync_ptsz, cuMemcpyAsync);

/* ---- sets ---- */

static CUresult set(CUdeviceptr to, uint32_t value, size_t width, size_t count) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) return result;
    uint64_t bytes;
    if (to % width != 0 || __builtin_mul_overflow(count, width, &bytes) || !memory_covers(to, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    if (width == 1) memset(host(to), (int)value, count);
    for (size_t i = 0; width == 2 && i < count; i++) ((uint16_t *)host(to))[i] = (uint16_t)value;
    for (size_t i = 0; width == 4 && i < count; i++) ((uint32_t *)host(to))[i] = value;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) { return set(to, value, 1, count); }
EXPORT CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) { return set(to, value, 2, count); }
EXPORT CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) { return set(to, value, 4, count); }
ALSO(cuMemsetD8_v2_ptds, cuMemsetD8_v2);
ALSO(cuMemsetD16_v2_ptds, cuMemsetD16_v2);
ALSO(cuMemsetD32_v2_ptds, cuMemsetD32_v2);

EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
    (void)stream;
    return set(to, value, 1, count);
}
EXPORT CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
    (void)stream;
    return set(to, value, 2, count);
}
EXPORT CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
    (void)stream;
    return set(to, value, 4, count);
}
ALSO(cuMemsetD8Async_ptsz, cuMemsetD8Async);
ALSO(cuMemsetD16Async_ptsz, cuMemsetD16Async);
ALSO(cuMemsetD32Async_ptsz, cuMemsetD32Async);
