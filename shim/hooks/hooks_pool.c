/* Stream-ordered allocations: charged by what their pool has reserved (pools.c). */
#include "charging/charge.h"
#include "charging/devices.h"
#include "charging/held.h"
#include "hooks_stream.h"
#include "charging/pools.h"
#include "resolve.h"
#include "share.h"

__attribute__((cold, noinline)) static void undo(struct pool *pool, uint64_t live, CUdeviceptr address,
                                                 CUstream stream) {
    REAL(cuMemFreeAsync)(address, stream);
    pool_freed(pool, live, stream);
    /* Only what it grew by, since the program may need the rest; all that is free where no piece is so small. */
    REAL(cuMemPoolTrimTo)(pool->handle, pool_charged(pool));
    if (pool_look(pool)) return;
    REAL(cuMemPoolTrimTo)(pool->handle, 0);
    pool_look(pool);
}

/* Of an allocation that failed, or that took more than is charged. True: it is to be made again. */
__attribute__((cold, noinline)) static bool unmet(CUresult *result, struct pool *pool, struct growth *growth,
                                                  const CUdeviceptr *address, CUstream stream) {
    if (*result == CUDA_SUCCESS) undo(pool, growth->live, *address, stream);
    if (pool_again(growth, *result)) return true;
    if (*result == CUDA_SUCCESS)
        *result = CUDA_ERROR_OUT_OF_MEMORY;
    else
        charge_refused(pool->slot, growth->live, *result);
    return false;
}

__attribute__((cold, noinline)) static CUresult not_noted(struct pool *pool, uint64_t live, CUdeviceptr address,
                                                          CUstream stream) {
    undo(pool, live, address, stream);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Notes what is charged, or undoes it. */
static CUresult note_pooled(struct pool *pool, uint64_t live, CUdeviceptr address, CUstream stream) {
    struct ledger_entry entry = {.kind = LEDGER_POINTER,
                                 .key = address,
                                 .bytes = live,
                                 .slot = (uint8_t)pool->slot,
                                 .pooled = true,
                                 .owner = (uint64_t)(uintptr_t)pool};
    return held_note(&entry) ? CUDA_SUCCESS : not_noted(pool, live, address, stream);
}

/* Asked once the card is full: only what is not tried waits for it. */
static bool only_tried(struct growth *growth) {
    growth->waited = true;
    return growth->tried;
}

/* An allocation on a stream that is being captured becomes a node of a graph and takes nothing now. One that is only
 * tried is not repeated while the card is full: it then asks for what the pool would grow by, and waits. */
#define ALLOCATE(where, pool_found, call)                                                                              \
    CUresult result;                                                                                                   \
    struct growth growth;                                                                                              \
    struct pool *pool, *before = NULL;                                                                                 \
    if (streams_capturing(where)) return call;                                                                         \
    do {                                                                                                               \
        if (!(pool = pool_found)) return result;                                                                       \
        if (pool->slot == NO_SLOT) return call;                                                                        \
        if (pool != before) growth.turns = 0;                                                                          \
        before = pool;                                                                                                 \
        result = pool_begin(pool, bytes, where, &growth);                                                              \
        if (result != CUDA_SUCCESS) return result;                                                                     \
        result =                                                                                                       \
            CHARGED_CALL_UNLESS(only_tried(&growth), growth.waited && pool_found != pool ? POOL_IS_ANOTHER : call);    \
        if (pool_end(pool, &growth, result == CUDA_SUCCESS) && result == CUDA_SUCCESS)                                 \
            return note_pooled(pool, growth.live, *address, where);                                                    \
    } while (unmet(&result, pool, &growth, address, where));                                                           \
    return result

int cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream) {
    ALLOCATE(stream, pools_of_stream(stream, &result), REAL(cuMemAllocAsync)(address, bytes, stream));
}

int cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t bytes, CUstream stream) {
    ALLOCATE(PER_THREAD(stream), pools_of_stream(stream, &result), REAL(cuMemAllocAsync_ptsz)(address, bytes, stream));
}

int cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool handle, CUstream stream) {
    ALLOCATE(stream, pools_find(handle, &result), REAL(cuMemAllocFromPoolAsync)(address, bytes, handle, stream));
}

int cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *address, size_t bytes, CUmemoryPool handle, CUstream stream) {
    ALLOCATE(PER_THREAD(stream), pools_find(handle, &result),
             REAL(cuMemAllocFromPoolAsync_ptsz)(address, bytes, handle, stream));
}

/* A captured free of memory from outside the capture happens when the graph runs, so it is not one yet. */
#define FREE(where, call)                                                                                              \
    struct ledger_entry entry;                                                                                         \
    if (streams_capturing(where)) return call;                                                                         \
    bool known = ledger_take(LEDGER_POINTER, address, &entry);                                                         \
    return held_end_free(call, known, &entry, where)

int cuMemFreeAsync(CUdeviceptr address, CUstream stream) { FREE(stream, REAL(cuMemFreeAsync)(address, stream)); }

int cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
    FREE(PER_THREAD(stream), REAL(cuMemFreeAsync_ptsz)(address, stream));
}

/* ---- the pools themselves ---- */

/* Which slot pays for a pool: NO_SLOT, none, for one on the host. Managed memory moves to the GPU that uses it,
 * whatever place its pool prefers. */
static CUresult slot_of(const CUmemLocation *location, int type, int *slot) {
    struct place place = {.device = 0};
    CUresult error;
    *slot = NO_SLOT;
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE)
        place.device = location->id;
    else if (type == CU_MEM_ALLOCATION_TYPE_MANAGED)
        devices_here(&place); /* a thread without a context: the first one */
    else
        return CUDA_SUCCESS;
    *slot = devices_slot(place.device, &error);
    return *slot == NO_SLOT ? error : CUDA_SUCCESS;
}

int cuMemPoolCreate(CUmemoryPool *handle, const CUmemPoolProps *properties) {
    int slot = NO_SLOT;
    CUresult result = properties ? slot_of(&properties->location, properties->allocType, &slot) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) return result;
    struct lease_page *page = slot == NO_SLOT ? share_begin(LEASE_SHARES_HOST) : NULL;
    result = share_end(page, LEASE_SHARES_HOST, REAL(cuMemPoolCreate)(handle, properties));
    if (result != CUDA_SUCCESS || pools_add(*handle, slot)) return result;
    REAL(cuMemPoolDestroy)(*handle);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Pools that the driver has made: where they are is only to be known from the question. */
static CUresult note(CUresult result, const CUmemoryPool *handle, const CUmemLocation *location, int type) {
    int slot;
    if (result != CUDA_SUCCESS || pools_known(*handle)) return result;
    result = slot_of(location, type, &slot);
    if (result != CUDA_SUCCESS) return result;
    if (slot == NO_SLOT) share_end(share_begin(LEASE_SHARES_HOST), LEASE_SHARES_HOST, CUDA_SUCCESS);
    return pools_meet(*handle, slot) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

int cuMemGetMemPool(CUmemoryPool *handle, CUmemLocation *location, int type) {
    return note(REAL(cuMemGetMemPool)(handle, location, type), handle, location, type);
}

int cuMemGetDefaultMemPool(CUmemoryPool *handle, CUmemLocation *location, int type) {
    return note(REAL(cuMemGetDefaultMemPool)(handle, location, type), handle, location, type);
}

int cuMemPoolDestroy(CUmemoryPool handle) {
    struct pool *pool = pools_leave(handle);
    CUresult result = REAL(cuMemPoolDestroy)(handle);
    pools_left(pool, result == CUDA_SUCCESS);
    return result;
}

static CUresult look(CUresult result, CUmemoryPool handle) {
    CUresult unused;
    struct pool *pool = result == CUDA_SUCCESS ? pools_find(handle, &unused) : NULL;
    if (pool) pool_look(pool);
    return result;
}

int cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) { return look(REAL(cuMemPoolTrimTo)(handle, keep), handle); }

int cuMemPoolSetAttribute(CUmemoryPool handle, int attribute, void *value) {
    return look(REAL(cuMemPoolSetAttribute)(handle, attribute, value), handle);
}

/* Its memory is charged where it was exported. */
int cuMemPoolImportFromShareableHandle(CUmemoryPool *handle, void *shared, int type, unsigned long long flags) {
    struct lease_page *page = share_begin(LEASE_SHARES_POOL);
    CUresult result =
        share_end(page, LEASE_SHARES_POOL, REAL(cuMemPoolImportFromShareableHandle)(handle, shared, type, flags));
    if (result != CUDA_SUCCESS || pools_add(*handle, NO_SLOT)) return result;
    REAL(cuMemPoolDestroy)(*handle);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

int cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle) {
    CUresult result = REAL(cuDeviceSetMemPool)(device, handle);
    pools_changed();
    return result;
}

int cuMemSetMemPool(CUmemLocation *location, int type, CUmemoryPool handle) {
    CUresult result = REAL(cuMemSetMemPool)(location, type, handle);
    pools_changed();
    return result;
}
