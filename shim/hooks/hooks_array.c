/* Arrays and mipmapped arrays: charged by their true size, which depends on how the device tiles them. The driver
 * tells it of an array whose memory is mapped later, so such a twin, which takes nothing, is made and asked first. */
#include "charging/charge.h"
#include "charging/devices.h"
#include "charging/held.h"
#include "charging/physical.h"
#include "resolve.h"

/* No memory of their own: what is mapped into them was charged when it was created. */
#define WITHOUT_MEMORY (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)

static uint64_t times(uint64_t a, uint64_t b) { return b && a > UINT64_MAX / b ? UINT64_MAX : a * b; }

/* Bytes of one channel; four for what is not known here, which only formats that have a twin are. */
static unsigned int channel_bytes(int format) {
    switch (format) {
        case 0x01: /* 8 bits: unsigned, signed */
        case 0x08:
            return 1;
        case 0x02: /* 16 bits: unsigned, signed, half */
        case 0x09:
        case 0x10:
            return 2;
        default:
            return 4;
    }
}

/* The sum of its elements, for a driver that has no twins. `levels`: of a mipmap, whose smaller ones add a third. */
static uint64_t plain_size(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels) {
    uint64_t elements = times(times(shape->Width, shape->Height ? shape->Height : 1), shape->Depth ? shape->Depth : 1);
    uint64_t bytes = times(times(elements, shape->NumChannels), channel_bytes(shape->Format));
    if (levels > 1 && bytes < UINT64_MAX / 2) bytes += bytes / 3 + BLOCK;
    return bytes;
}

static uint64_t array_size(const CUDA_ARRAY3D_DESCRIPTOR *shape, CUdevice device) {
    CUDA_ARRAY3D_DESCRIPTOR twin = *shape;
    CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {.size = 0};
    CUarray array;
    twin.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    if (REAL(cuArray3DCreate_v2)(&array, &twin) == CUDA_SUCCESS) {
        if (REAL(cuArrayGetMemoryRequirements)(&needs, array, device) != CUDA_SUCCESS) needs.size = 0;
        REAL(cuArrayDestroy)(array);
    }
    return needs.size ? needs.size : plain_size(shape, 1);
}

static uint64_t mipmap_size(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels, CUdevice device) {
    CUDA_ARRAY3D_DESCRIPTOR twin = *shape;
    CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {.size = 0};
    CUmipmappedArray array;
    twin.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    if (REAL(cuMipmappedArrayCreate)(&array, &twin, levels) == CUDA_SUCCESS) {
        if (REAL(cuMipmappedArrayGetMemoryRequirements)(&needs, array, device) != CUDA_SUCCESS) needs.size = 0;
        REAL(cuMipmappedArrayDestroy)(array);
    }
    return needs.size ? needs.size : plain_size(shape, levels);
}

/* Takes what an array of this shape needs; levels 0: it is no mipmap. */
static CUresult begin(struct place *place, uint64_t *charge, const CUDA_ARRAY3D_DESCRIPTOR *shape,
                      unsigned int levels) {
    CUresult result = devices_here(place);
    if (result != CUDA_SUCCESS) return result;
    *charge = 0;
    if (!(shape->Flags & WITHOUT_MEMORY))
        *charge = charge_of(levels ? mipmap_size(shape, levels, place->device) : array_size(shape, place->device));
    return charge_take(place->slot, *charge, WIRE_FOR_MEMORY);
}

static CUresult end(CUresult result, const struct place *place, uint64_t charge, void *array, bool mipmap) {
    struct ledger_entry entry = {.kind = LEDGER_ARRAY,
                                 .key = (uint64_t)(uintptr_t)array,
                                 .bytes = charge,
                                 .slot = (uint8_t)place->slot,
                                 .owner = place->owner};
    if (result != CUDA_SUCCESS) {
        charge_give(place->slot, charge);
        return charge_refused(place->slot, charge, result);
    }
    if (held_note(&entry)) return CUDA_SUCCESS;
    if (mipmap)
        REAL(cuMipmappedArrayDestroy)(array);
    else
        REAL(cuArrayDestroy)(array);
    charge_give(place->slot, charge);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

#define CREATE(shape, levels, call)                                                                                    \
    struct place place;                                                                                                \
    uint64_t charge;                                                                                                   \
    if (!array || !description) return call;                                                                           \
    CUDA_ARRAY3D_DESCRIPTOR described = shape;                                                                         \
    CUresult result = begin(&place, &charge, &described, levels);                                                      \
    if (result != CUDA_SUCCESS) return result;                                                                         \
    result = CHARGED_CALL(call);                                                                                       \
    return end(result, &place, charge, result == CUDA_SUCCESS ? (void *)*array : NULL, levels != 0)

#define FLAT                                                                                                           \
    {.Width = description->Width,                                                                                      \
     .Height = description->Height,                                                                                    \
     .Format = description->Format,                                                                                    \
     .NumChannels = description->NumChannels}

#define DEEP                                                                                                           \
    {.Width = description->Width,                                                                                      \
     .Height = description->Height,                                                                                    \
     .Depth = description->Depth,                                                                                      \
     .Format = description->Format,                                                                                    \
     .NumChannels = description->NumChannels,                                                                          \
     .Flags = description->Flags}

int cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *description) {
    CREATE(FLAT, 0, REAL(cuArrayCreate)(array, description));
}

int cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *description) {
    CREATE(FLAT, 0, REAL(cuArrayCreate_v2)(array, description));
}

int cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *description) {
    CREATE(DEEP, 0, REAL(cuArray3DCreate)(array, description));
}

int cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *description) {
    CREATE(DEEP, 0, REAL(cuArray3DCreate_v2)(array, description));
}

int cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *description, unsigned int levels) {
    CREATE(DEEP, levels ? levels : 1, REAL(cuMipmappedArrayCreate)(array, description, levels));
}

#define DESTROY(call)                                                                                                  \
    struct ledger_entry entry;                                                                                         \
    struct tiles tiles = {.array = array};                                                                             \
    bool known = ledger_take(LEDGER_ARRAY, (uint64_t)(uintptr_t)array, &entry);                                        \
    if (known && !entry.bytes) physical_take_tiles(&tiles);                                                            \
    CUresult result = call;                                                                                            \
    physical_end_tiles(&tiles, result == CUDA_SUCCESS);                                                                \
    return held_end_free(result, known, &entry, NULL)

int cuArrayDestroy(CUarray array) { DESTROY(REAL(cuArrayDestroy)(array)); }

int cuMipmappedArrayDestroy(CUmipmappedArray array) { DESTROY(REAL(cuMipmappedArrayDestroy)(array)); }
