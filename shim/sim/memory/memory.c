/* Plain memory: allocate, free, ask, copy, set. Work is done before the call returns. */
#include "driver.h"

#include <stdlib.h>

#define PITCH 512ull

static CUresult take(CUdeviceptr *address, uint64_t bytes, enum block_kind kind) {
    struct context *context;
    REQUIRE(context_current(&context));
    if (address == NULL) return CUDA_ERROR_INVALID_VALUE;
    return heap_take(sim_gpu(context->device), context, bytes, kind, address);
}

ENTRY(cuMemAlloc_v2, (CUdeviceptr *address, size_t bytes), take(address, bytes, BLOCK_DEVICE));

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element) {
    ENTERED();
    if (pitch == NULL || (element != 4 && element != 8 && element != 16)) return CUDA_ERROR_INVALID_VALUE;
    uint64_t row, bytes;
    if (__builtin_add_overflow(width, PITCH - 1, &row)) return CUDA_ERROR_OUT_OF_MEMORY;
    row = row / PITCH * PITCH;
    if (__builtin_mul_overflow(row, height, &bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    REQUIRE(take(address, bytes, BLOCK_DEVICE));
    *pitch = row;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned flags) {
    ENTERED();
    if (flags != 1 && flags != 2) return CUDA_ERROR_INVALID_VALUE; /* attach to all streams, or to the host */
    return take(address, bytes, BLOCK_MANAGED);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
    ENTERED();
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS || address == 0) return result;
    card_settle(sim_gpu(context->device)); /* cuMemFree synchronises */
    result = address_free(address);
    pool_settle();
    return result;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    ENTERED_IN(context);
    unsigned gpu = sim_gpu(context->device);
    if (free_bytes != NULL) *free_bytes = card_free(card_here(gpu)) * CARD_UNIT;
    if (total != NULL) *total = card_open()->gpu[gpu].units * CARD_UNIT;
    return CUDA_SUCCESS;
}

/* ---- copies and sets ---- */

/* `device`: which side has to be device memory. */
enum side { TO = 1, FROM = 2, BOTH = TO | FROM };

static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, enum side device, CUstream stream) {
    struct context *context;
    REQUIRE(context_current(&context));
    if ((device & TO) && !address_covers(to, bytes)) return CUDA_ERROR_INVALID_VALUE;
    if ((device & FROM) && !address_covers(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
    return work_submit(stream, &(struct work){.type = NODE_COPY, .copy = {to, from, bytes}});
}

#define DEFAULT NULL

/* Those without a stream come after all that was given before. */
static CUresult copy_now(CUdeviceptr to, CUdeviceptr from, size_t bytes, enum side device) {
    struct context *context;
    if (context_current(&context) == CUDA_SUCCESS) card_settle(sim_gpu(context->device));
    return copy(to, from, bytes, device, DEFAULT);
}

ENTRY(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes), copy_now(to, (uintptr_t)from, bytes, TO));
ALSO(cuMemcpyHtoD_v2_ptds, cuMemcpyHtoD_v2);

ENTRY(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes), copy_now((uintptr_t)to, from, bytes, FROM));
ALSO(cuMemcpyDtoH_v2_ptds, cuMemcpyDtoH_v2);

ENTRY(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes), copy_now(to, from, bytes, BOTH));
ALSO(cuMemcpyDtoD_v2_ptds, cuMemcpyDtoD_v2);

static CUresult set(CUdeviceptr to, uint32_t value, uint64_t width, size_t count, CUstream stream) {
    struct context *context;
    REQUIRE(context_current(&context));
    uint64_t bytes;
    if (to % width != 0 || __builtin_mul_overflow(count, width, &bytes) || !address_covers(to, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    return work_submit(stream, &(struct work){.type = NODE_SET, .set = {to, value, width, count}});
}

ENTRY(cuMemsetD8_v2, (CUdeviceptr to, unsigned char value, size_t count), set(to, value, 1, count, DEFAULT));
ALSO(cuMemsetD8_v2_ptds, cuMemsetD8_v2);

ENTRY(cuMemsetD32_v2, (CUdeviceptr to, unsigned value, size_t count), set(to, value, 4, count, DEFAULT));
ALSO(cuMemsetD32_v2_ptds, cuMemsetD32_v2);
