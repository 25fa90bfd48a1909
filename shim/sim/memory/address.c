/* Addresses: what lies where, whichever way it was allocated, and what programs may ask about a pointer. */
#include "driver.h"

#include <string.h>

bool address_find(CUdeviceptr address, struct place *place) {
    if (heap_find(address, place)) {
        if (place->kind == BLOCK_POOL) return pool_find(address, place);
        return place->kind != BLOCK_HIDDEN;
    }
    return vmm_find(address, place) || graph_memory_find(address, place) || old_find(address, place);
}

bool address_covers(CUdeviceptr address, uint64_t bytes) {
    struct place place;
    if (bytes == 0 || vmm_covers(address, bytes)) return true;
    if (!address_find(address, &place) && !host_find(address, &place)) return false;
    return bytes <= place.base + place.bytes - address;
}

CUresult address_free(CUdeviceptr address) {
    struct place place;
    if (!heap_find(address, &place)) {
        CUresult result = graph_memory_free(address);
        if (result == CUDA_SUCCESS) return result;
        /* A mapped buffer of external memory is freed like memory. */
        return vmm_unmap_file(address / CARD_UNIT * CARD_UNIT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    if (place.kind == BLOCK_HIDDEN) return CUDA_ERROR_INVALID_VALUE;
    return place.kind == BLOCK_POOL ? pool_free(address) : heap_give(address);
}

/* ---- what a pointer is ---- */

enum {
    ATTRIBUTE_MEMORY_TYPE = 2,
    ATTRIBUTE_DEVICE_POINTER = 3,
    ATTRIBUTE_HOST_POINTER = 4,
    ATTRIBUTE_IS_MANAGED = 8,
    ATTRIBUTE_DEVICE_ORDINAL = 9,
    ATTRIBUTE_RANGE_START = 11,
    ATTRIBUTE_RANGE_SIZE = 12,
    ATTRIBUTE_MAPPED = 13,
    ATTRIBUTE_MEMPOOL = 17,
};
enum { ON_HOST = 1, ON_DEVICE = 2 };

static CUdevice device_with(unsigned gpu) {
    CUdevice device = 0;
    while (device < sim_devices() && sim_gpu(device) != gpu) device++;
    return device;
}

static CUresult describe(void *data, int attribute, CUdeviceptr address) {
    struct place place;
    bool on_device = address_find(address, &place);
    if (!on_device && !host_find(address, &place)) return CUDA_ERROR_INVALID_VALUE;
    bool managed = on_device && place.kind == BLOCK_MANAGED;
    switch (attribute) {
        case ATTRIBUTE_MEMORY_TYPE:
            *(unsigned *)data = on_device ? ON_DEVICE : ON_HOST;
            break;
        case ATTRIBUTE_DEVICE_POINTER:
            *(CUdeviceptr *)data = address;
            break;
        case ATTRIBUTE_HOST_POINTER:
            if (on_device && !managed) return CUDA_ERROR_INVALID_VALUE;
            *(void **)data = (void *)(uintptr_t)address;
            break;
        case ATTRIBUTE_IS_MANAGED:
            *(unsigned *)data = managed;
            break;
        case ATTRIBUTE_DEVICE_ORDINAL:
            *(int *)data = on_device ? device_with(place.gpu) : 0;
            break;
        case ATTRIBUTE_RANGE_START:
            *(CUdeviceptr *)data = place.base;
            break;
        case ATTRIBUTE_RANGE_SIZE:
            *(size_t *)data = place.bytes;
            break;
        case ATTRIBUTE_MAPPED:
            *(unsigned char *)data = 1;
            break;
        case ATTRIBUTE_MEMPOOL:
            *(const void **)data = on_device && place.kind == BLOCK_POOL ? place.owner : NULL;
            break;
        default:
            return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address) {
    ENTERED_READY();
    return data == NULL ? CUDA_ERROR_INVALID_VALUE : describe(data, attribute, address);
}
