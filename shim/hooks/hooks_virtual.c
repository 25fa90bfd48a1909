/* Virtual memory management: physical memory is charged (physical.h), addresses alone cost nothing. Imported memory is
 * its exporter's. */
#include "charging/charge.h"
#include "charging/devices.h"
#include "charging/physical.h"
#include "resolve.h"
#include "share.h"

#include <stddef.h>
#include <stdlib.h>

int cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                unsigned long long flags) {
    if (!properties || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        SHARE(LEASE_SHARES_HOST, REAL(cuMemCreate)(handle, bytes, properties, flags));
    }
    CUresult result;
    int slot = devices_slot(properties->location.id, &result);
    if (slot == NO_SLOT) return result;
    uint64_t charge = bytes > UINT64_MAX - BLOCK ? UINT64_MAX : (bytes + BLOCK - 1) & ~(BLOCK - 1);
    struct physical *physical = malloc(sizeof *physical);
    if (!physical) return CUDA_ERROR_OUT_OF_MEMORY;
    *physical = (struct physical){.slot = slot, .bytes = charge, .references = 1};
    result = charge_take(slot, charge, WIRE_FOR_MEMORY);
    if (result != CUDA_SUCCESS) {
        free(physical);
        return result;
    }
    result = CHARGED_CALL(REAL(cuMemCreate)(handle, bytes, properties, flags));
    if (result == CUDA_SUCCESS && physical_add_handle(*handle, physical)) return CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) REAL(cuMemRelease)(*handle);
    free(physical);
    charge_give(slot, charge);
    return result == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : charge_refused(slot, charge, result);
}

int cuMemRelease(CUmemGenericAllocationHandle handle) {
    struct physical *physical = physical_remove_handle(handle);
    CUresult result = REAL(cuMemRelease)(handle);
    if (!physical) return result;
    if (result != CUDA_SUCCESS)
        physical_add_handle(handle, physical);
    else
        physical_drop(physical);
    return result;
}

/* A new handle for what is mapped at an address, perhaps after the last one was released. */
int cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    CUresult result = REAL(cuMemRetainAllocationHandle)(handle, address);
    if (result != CUDA_SUCCESS) return result;
    struct physical *physical = physical_look_up(*handle);
    if (!physical) physical = physical_mapped_at((CUdeviceptr)(uintptr_t)address);
    if (!physical || physical_add_handle(*handle, physical)) return result;
    physical_drop(physical);
    REAL(cuMemRelease)(*handle);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Our own memory may come back to us under the handle that we know: then that is one more reference. */
int cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shared, int type) {
    struct lease_page *page = share_begin(LEASE_SHARES_IMPORTED);
    CUresult result =
        share_end(page, LEASE_SHARES_IMPORTED, REAL(cuMemImportFromShareableHandle)(handle, shared, type));
    if (result != CUDA_SUCCESS) return result;
    struct physical *physical = physical_look_up(*handle);
    if (physical) physical_add_handle(*handle, physical);
    return result;
}

int cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long flags) {
    struct physical *physical = physical_look_up(handle);
    CUresult result = REAL(cuMemMap)(address, bytes, offset, handle, flags);
    if (!physical) return result;
    struct ledger_entry replaced, entry = {.kind = LEDGER_MAPPING,
                                           .key = address,
                                           .bytes = bytes,
                                           .slot = (uint8_t)physical->slot,
                                           .owner = (uint64_t)(uintptr_t)physical};
    if (result == CUDA_SUCCESS && !ledger_put(&entry, &replaced)) {
        REAL(cuMemUnmap)(address, bytes);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS) physical_drop(physical);
    return result;
}

/* One call may end several mappings that lie one behind the other. Their entries are taken out first (another thread
 * may map something new there as soon as the call returns) and chained through their own fields. */
int cuMemUnmap(CUdeviceptr address, size_t bytes) {
    struct ledger_entry few[8], *taken = few, *more;
    size_t count = 0, room = sizeof few / sizeof *few;
    CUdeviceptr at = address, end = address + bytes;
    while (at < end && ledger_take(LEDGER_MAPPING, at, &taken[count])) {
        at += taken[count++].bytes;
        if (count < room) continue;
        more = taken == few ? malloc(2 * sizeof few) : realloc(taken, room * 2 * sizeof *taken);
        if (!more) break; /* what is left stays charged: too much rather than too little */
        if (taken == few)
            for (size_t index = 0; index < count; index++) more[index] = few[index];
        taken = more;
        room *= 2;
    }
    CUresult result = REAL(cuMemUnmap)(address, bytes);
    while (count--) {
        struct ledger_entry replaced;
        if (result == CUDA_SUCCESS)
            physical_drop(physical_of(&taken[count]));
        else
            ledger_put(&taken[count], &replaced);
    }
    if (taken != few) free(taken);
    return result;
}

/* ---- memory mapped into arrays ---- */

/* A part of an array is known by where it begins. Unmapped in other pieces than it was mapped in, it stays charged
 * until the array goes: too much rather than too little. */
static uint64_t tile_key(const CUarrayMapInfo *tile) {
    const unsigned int *place = tile->subresource.sparseLevel; /* level, layer, offsets; or layer, offset of a tail */
    uint64_t key = (uint64_t)(uintptr_t)tile->resource ^ (uint64_t)tile->subresourceType << 60;
    for (int at = 0; at < 5; at++) key = (key ^ place[at]) * 0x100000001b3u;
    return key;
}

/* The memory that a tile maps, referred to once more; NULL if it maps none of ours. */
static struct physical *mapped_by(const CUarrayMapInfo *tile) {
    return tile->memOperationType == CU_MEM_OPERATION_TYPE_MAP ? physical_look_up(tile->memHandle) : NULL;
}

/* The references are taken before the call, as the handles may be released as soon as it has returned. */
static CUresult map_tiles(CUarrayMapInfo *tiles, unsigned int count, CUstream stream,
                          cuMemMapArrayAsync_function *real) {
    struct physical **mapped = tiles && count ? calloc(count, sizeof(struct physical *)) : NULL;
    if (tiles && count && !mapped) return CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned int at = 0; tiles && at < count; at++) mapped[at] = mapped_by(&tiles[at]);
    CUresult result = real(tiles, count, stream);
    for (unsigned int at = 0; tiles && at < count; at++) {
        struct ledger_entry before = {.kind = 0};
        struct ledger_entry entry = {.kind = LEDGER_TILE,
                                     .key = tile_key(&tiles[at]),
                                     .bytes = (uint64_t)(uintptr_t)tiles[at].resource,
                                     .owner = (uint64_t)(uintptr_t)mapped[at]};
        if (result != CUDA_SUCCESS) {
            if (mapped[at]) physical_drop(mapped[at]);
        } else if (mapped[at]) {
            if (ledger_put(&entry, &before) && before.kind) physical_drop(physical_of(&before));
        } else if (ledger_take(LEDGER_TILE, entry.key, &before)) {
            physical_drop(physical_of(&before));
        }
    }
    free(mapped);
    return result;
}

int cuMemMapArrayAsync(CUarrayMapInfo *tiles, unsigned int count, CUstream stream) {
    return map_tiles(tiles, count, stream, REAL(cuMemMapArrayAsync));
}

int cuMemMapArrayAsync_ptsz(CUarrayMapInfo *tiles, unsigned int count, CUstream stream) {
    return map_tiles(tiles, count, stream, REAL(cuMemMapArrayAsync_ptsz));
}
