/* Arrays and mipmapped arrays: they take their true size. One made for deferred mapping takes nothing itself: the
 * program maps physical memory into it. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

struct descriptor { /* CUDA_ARRAY3D_DESCRIPTOR */
    size_t width, height, depth;
    int format;
    unsigned channels;
    unsigned flags;
};

struct descriptor_2d { /* CUDA_ARRAY_DESCRIPTOR */
    size_t width, height;
    int format;
    unsigned channels;
};

/* As they were before CUDA 3.2. */
struct descriptor_v1 {
    unsigned width, height, depth;
    int format;
    unsigned channels;
    unsigned flags;
};

struct descriptor_2d_v1 {
    unsigned width, height;
    int format;
    unsigned channels;
};

enum { LAYERED = 1, DEFERRED_MAPPING = 0x80 };

struct array {
    struct descriptor is;
    CUdeviceptr memory; /* 0: deferred, or a level of a mipmapped array */
    uint64_t bytes;
    unsigned count; /* levels of a mipmapped array */
    struct array *level;
    void *mapped; /* deferred: what is mapped into it */
};

/* Bytes of one channel, 0 for a format this card does not know. */
static unsigned channel_bytes(int format) {
    switch (format) {
        case 0x01:
        case 0x08:
            return 1; /* 8-bit integers */
        case 0x02:
        case 0x09:
        case 0x10:
            return 2; /* 16-bit integers, half */
        case 0x03:
        case 0x0a:
        case 0x20:
            return 4; /* 32-bit integers, float */
        default:
            return 0;
    }
}

/* False if this is no array, or one that no card could hold. */
static bool size_of(const struct descriptor *is, uint64_t *bytes) {
    unsigned element = channel_bytes(is->format) * is->channels;
    if (element == 0 || is->width == 0 || (is->channels != 1 && is->channels != 2 && is->channels != 4)) return false;
    uint64_t rows;
    return !__builtin_mul_overflow(is->height ? is->height : 1, is->depth ? is->depth : 1, &rows) &&
           !__builtin_mul_overflow(is->width, rows, bytes) && !__builtin_mul_overflow(*bytes, element, bytes);
}

static CUresult take(struct array *array, uint64_t bytes) {
    struct context *context;
    CUresult result = context_current(&context);
    array->bytes = bytes;
    if (result != CUDA_SUCCESS || (array->is.flags & DEFERRED_MAPPING)) return result;
    return heap_take(sim_gpu(context->device), context, bytes, BLOCK_HIDDEN, &array->memory);
}

static CUresult create(CUarray *array, const struct descriptor *is) {
    struct context *context;
    REQUIRE(context_current(&context));
    uint64_t bytes;
    if (!size_of(is, &bytes)) return CUDA_ERROR_INVALID_VALUE;
    struct array *made = sim_new(sizeof *made);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    made->is = *is;
    CUresult result = take(made, bytes);
    if (result == CUDA_SUCCESS)
        *array = made;
    else
        free(made);
    return result;
}

static CUresult destroy(CUarray array) {
    struct context *context;
    REQUIRE(context_current(&context));
    if (array == NULL) return CUDA_ERROR_INVALID_HANDLE;
    if (array->memory != 0) heap_give(array->memory);
    if (array->mapped != NULL) physical_detach(array->mapped);
    free(array->level);
    free(array);
    return CUDA_SUCCESS;
}

ENTRY(cuArray3DCreate_v2, (CUarray *array, const struct descriptor *is),
      array != NULL && is != NULL ? create(array, is) : CUDA_ERROR_INVALID_VALUE);

EXPORT CUresult cuArrayCreate_v2(CUarray *array, const struct descriptor_2d *is) {
    ENTERED();
    if (array == NULL || is == NULL) return CUDA_ERROR_INVALID_VALUE;
    return create(array, &(struct descriptor){is->width, is->height, 0, is->format, is->channels, 0});
}

EXPORT CUresult cuArray3DCreate(CUarray *array, const struct descriptor_v1 *is) {
    ENTERED();
    if (array == NULL || is == NULL) return CUDA_ERROR_INVALID_VALUE;
    return create(array, &(struct descriptor){is->width, is->height, is->depth, is->format, is->channels, is->flags});
}

EXPORT CUresult cuArrayCreate(CUarray *array, const struct descriptor_2d_v1 *is) {
    ENTERED();
    if (array == NULL || is == NULL) return CUDA_ERROR_INVALID_VALUE;
    return create(array, &(struct descriptor){is->width, is->height, 0, is->format, is->channels, 0});
}

ENTRY(cuArrayDestroy, (CUarray array), destroy(array));

/* ---- mipmapped arrays ---- */

static size_t half(size_t extent) { return extent > 1 ? extent / 2 : extent; }

EXPORT CUresult cuMipmappedArrayCreate(CUarray *mipmap, const struct descriptor *is, unsigned levels) {
    ENTERED();
    if (mipmap == NULL || is == NULL || levels == 0 || levels > 32) return CUDA_ERROR_INVALID_VALUE;
    struct array *made = sim_new(sizeof *made);
    if (made != NULL) made->level = calloc(levels, sizeof *made->level);
    if (made == NULL || made->level == NULL) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->is = *is;
    struct descriptor level = *is;
    uint64_t all = 0, bytes;
    CUresult result = CUDA_SUCCESS;
    for (; result == CUDA_SUCCESS && made->count < levels; made->count++) {
        if (!size_of(&level, &bytes) || __builtin_add_overflow(all, bytes, &all)) result = CUDA_ERROR_INVALID_VALUE;
        made->level[made->count].is = level;
        level.width = half(level.width);
        level.height = half(level.height);
        if (!(level.flags & LAYERED)) level.depth = half(level.depth);
    }
    if (result == CUDA_SUCCESS) result = take(made, all);
    if (result == CUDA_SUCCESS) {
        *mipmap = made;
    } else {
        free(made->level);
        free(made);
    }
    return result;
}

ENTRY(cuMipmappedArrayDestroy, (CUarray mipmap), destroy(mipmap));

/* ---- deferred mapping ---- */

struct requirements { /* CUDA_ARRAY_MEMORY_REQUIREMENTS */
    size_t size, alignment;
    unsigned reserved[4];
};

static CUresult requirements(struct requirements *need, CUarray array, CUdevice device) {
    REQUIRE(sim_ready());
    if (!sim_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (array == NULL) return CUDA_ERROR_INVALID_HANDLE;
    if (need == NULL || !(array->is.flags & DEFERRED_MAPPING)) return CUDA_ERROR_INVALID_VALUE;
    *need = (struct requirements){(array->bytes + CARD_UNIT - 1) / CARD_UNIT * CARD_UNIT, CARD_UNIT, {0}};
    return CUDA_SUCCESS;
}

ENTRY(cuArrayGetMemoryRequirements, (struct requirements *need, CUarray array, CUdevice device),
      requirements(need, array, device));

ENTRY(cuMipmappedArrayGetMemoryRequirements, (struct requirements *need, CUarray mipmap, CUdevice device),
      requirements(need, mipmap, device));

struct map_info { /* CUarrayMapInfo */
    int resource_type;
    CUarray resource;
    int subresource_type;
    unsigned long long subresource[4];
    int operation;
    int handle_type;
    CUmemHandle handle;
    unsigned long long offset;
    unsigned devices, flags, reserved[2];
};
_Static_assert(sizeof(struct map_info) == 96, "CUDA's layout");
enum { OPERATION_MAP = 1, OPERATION_UNMAP = 2 };

static CUresult map_one(const struct map_info *info) {
    struct array *array = info->resource;
    if (array == NULL || !(array->is.flags & DEFERRED_MAPPING)) return CUDA_ERROR_INVALID_VALUE;
    if (info->operation == OPERATION_MAP) {
        if (array->mapped != NULL) return CUDA_ERROR_INVALID_VALUE;
        array->mapped = physical_attach(info->handle);
        return array->mapped != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    if (info->operation != OPERATION_UNMAP || array->mapped == NULL) return CUDA_ERROR_INVALID_VALUE;
    physical_detach(array->mapped);
    array->mapped = NULL;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemMapArrayAsync(struct map_info *infos, unsigned count, CUstream stream) {
    ENTERED_READY();
    if (infos == NULL) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) REQUIRE(map_one(&infos[i]));
    return CUDA_SUCCESS;
}
ALSO(cuMemMapArrayAsync_ptsz, cuMemMapArrayAsync);
