/* Stream-ordered memory. A pool reserves segments of the card, 32 MiB or multiples of it, and hands out parts of them.
 * What is freed can be handed out again at once; whole free segments go back when the program synchronises, as far as
 * the pool has more reserved than its release threshold. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SEGMENT (32ull << 20)
#define GRANULE 512ull

struct extent {
    uint64_t offset, bytes;
    uint64_t asked; /* 0: free */
    struct extent *next;
};

struct segment {
    struct pool *pool;
    CUdeviceptr base;
    uint64_t bytes, used;
    struct extent *extents; /* all of the segment, by offset; no two free ones side by side */
    struct segment *next;
};

struct properties { /* CUmemPoolProps */
    int type;
    int handle_types;
    struct location location;
    void *unused;
    size_t most;
    unsigned short usage;
    unsigned char reserved[54];
};
_Static_assert(sizeof(struct properties) == 88, "CUDA's layout");

enum {
    REUSE_FOLLOW_EVENTS = 1,
    REUSE_INTERNAL = 3,
    RELEASE_THRESHOLD = 4,
    RESERVED_CURRENT = 5,
    RESERVED_HIGH = 6,
    USED_CURRENT = 7,
    USED_HIGH = 8,
};

struct pool {
    CUdevice device;
    bool destroyed; /* goes away with its last allocation */
    int handle_types;
    int file; /* an imported pool: the exporter's memory file; else −1 */
    int reuse[REUSE_INTERNAL + 1];
    uint64_t threshold, reserved, reserved_high, used, used_high, most;
    struct segment *segments;
    struct pool *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool *pools; /* all that live */
static struct pool *default_pool[CARD_GPUS], *current_pool[CARD_GPUS];
static _Atomic bool unsettled; /* something was freed since pools were last settled */

/* ---- pools ---- */

static struct pool *pool_new(CUdevice device) {
    struct pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) return NULL;
    *pool = (struct pool){.device = device, .file = -1, .reuse = {0, 1, 1, 1}, .next = pools};
    pools = pool;
    return pool;
}

static bool known(const struct pool *pool) {
    for (const struct pool *one = pools; one != NULL; one = one->next)
        if (one == pool) return !one->destroyed;
    return false;
}

static struct pool *default_of(CUdevice device) {
    if (default_pool[device] == NULL) default_pool[device] = pool_new(device);
    return default_pool[device];
}

CUmemoryPool pool_current(CUdevice device) {
    pthread_mutex_lock(&lock);
    struct pool *pool = current_pool[device] != NULL ? current_pool[device] : default_of(device);
    pthread_mutex_unlock(&lock);
    return pool;
}

static void pool_end(struct pool *pool) {
    for (struct pool **link = &pools; *link != NULL; link = &(*link)->next) {
        if (*link != pool) continue;
        *link = pool->next;
        break;
    }
    if (pool->file >= 0) close(pool->file);
    free(pool);
}

/* ---- segments ---- */

static struct segment *segment_new(struct pool *pool, uint64_t bytes) {
    struct segment *segment = calloc(1, sizeof *segment);
    struct extent *all = calloc(1, sizeof *all);
    if (segment == NULL || all == NULL || (pool->most != 0 && pool->reserved + bytes > pool->most)) goto failed;
    if (heap_take(sim_gpu(pool->device), segment, bytes, BLOCK_POOL, &segment->base) != CUDA_SUCCESS) goto failed;
    all->bytes = bytes;
    segment->pool = pool;
    segment->bytes = bytes;
    segment->extents = all;
    segment->next = pool->segments;
    pool->segments = segment;
    pool->reserved += bytes;
    if (pool->reserved > pool->reserved_high) pool->reserved_high = pool->reserved;
    return segment;
failed:
    free(all);
    free(segment);
    return NULL;
}

static void segment_end(struct segment *segment) {
    struct pool *pool = segment->pool;
    for (struct segment **link = &pool->segments; *link != NULL; link = &(*link)->next) {
        if (*link != segment) continue;
        *link = segment->next;
        break;
    }
    pool->reserved -= segment->bytes;
    heap_give(segment->base);
    for (struct extent *extent = segment->extents, *next; extent != NULL; extent = next) {
        next = extent->next;
        free(extent);
    }
    free(segment);
}

/* Gives back free segments while more than `keep` stays reserved. */
static void trim(struct pool *pool, uint64_t keep) {
    for (struct segment *segment = pool->segments, *next; segment != NULL; segment = next) {
        next = segment->next;
        if (pool->reserved <= keep) return;
        if (segment->used == 0 && segment->bytes <= pool->reserved - keep) segment_end(segment);
    }
}

void pool_settle(void) {
    if (!atomic_load_explicit(&unsettled, memory_order_relaxed)) return;
    pthread_mutex_lock(&lock);
    atomic_store(&unsettled, false);
    for (struct pool *pool = pools, *next; pool != NULL; pool = next) {
        next = pool->next;
        trim(pool, pool->destroyed ? 0 : pool->threshold);
        if (pool->destroyed && pool->used == 0) pool_end(pool);
    }
    pthread_mutex_unlock(&lock);
}

void pool_forget(CUdevice device) {
    pthread_mutex_lock(&lock);
    for (struct pool *pool = pools; pool != NULL; pool = pool->next) {
        if (pool->device != device) continue;
        while (pool->segments != NULL) segment_end(pool->segments);
        pool->used = 0;
    }
    pthread_mutex_unlock(&lock);
}

/* ---- parts of segments ---- */

static bool extent_take(struct segment *segment, uint64_t bytes, uint64_t asked, CUdeviceptr *address) {
    if (segment->bytes - segment->used < bytes) return false;
    for (struct extent *extent = segment->extents; extent != NULL; extent = extent->next) {
        if (extent->asked != 0 || extent->bytes < bytes) continue;
        if (extent->bytes > bytes) {
            struct extent *rest = malloc(sizeof *rest);
            if (rest == NULL) return false;
            *rest = (struct extent){extent->offset + bytes, extent->bytes - bytes, 0, extent->next};
            extent->next = rest;
            extent->bytes = bytes;
        }
        extent->asked = asked;
        segment->used += bytes;
        *address = segment->base + extent->offset;
        return true;
    }
    return false;
}

static void join(struct extent *extent) {
    struct extent *next = extent->next;
    if (extent->asked != 0 || next == NULL || next->asked != 0) return;
    extent->bytes += next->bytes;
    extent->next = next->next;
    free(next);
}

static uint64_t round_up(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

static bool from_segments(struct pool *pool, uint64_t bytes, uint64_t asked, CUdeviceptr *address) {
    for (struct segment *segment = pool->segments; segment != NULL; segment = segment->next)
        if (extent_take(segment, bytes, asked, address)) return true;
    struct segment *segment = segment_new(pool, round_up(bytes, SEGMENT));
    if (segment == NULL) {
        /* The card is nearly full: what is kept for later goes first, then a smaller segment may fit. */
        trim(pool, 0);
        segment = segment_new(pool, round_up(bytes, CARD_UNIT));
    }
    return segment != NULL && extent_take(segment, bytes, asked, address);
}

CUresult pool_take(CUmemoryPool pool, uint64_t bytes, CUdeviceptr *address) {
    if (address == NULL || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > 1ull << 46) return CUDA_ERROR_OUT_OF_MEMORY;
    if (!card_join()) return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t rounded = round_up(bytes, GRANULE);
    pthread_mutex_lock(&lock);
    CUresult result = CUDA_SUCCESS;
    if (!known(pool)) result = CUDA_ERROR_INVALID_VALUE;
    else if (pool->file >= 0) result = CUDA_ERROR_NOT_PERMITTED; /* only its exporter allocates from it */
    else if (!from_segments(pool, rounded, bytes, address)) result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) {
        pool->used += rounded;
        if (pool->used > pool->used_high) pool->used_high = pool->used;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* The extent in use that `address` lies in. */
static struct extent *extent_find(CUdeviceptr address, struct segment **segment, struct extent **before) {
    struct place place;
    if (!heap_find(address, &place) || place.kind != BLOCK_POOL) return NULL;
    *segment = (struct segment *)place.owner;
    *before = NULL;
    uint64_t offset = address - place.base;
    for (struct extent *extent = (*segment)->extents; extent != NULL; *before = extent, extent = extent->next)
        if (offset < extent->offset + extent->bytes) return extent->asked != 0 ? extent : NULL;
    return NULL;
}

CUresult pool_free(CUdeviceptr address) {
    pthread_mutex_lock(&lock);
    struct segment *segment;
    struct extent *before, *extent = extent_find(address, &segment, &before);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (extent != NULL && address == segment->base + extent->offset) {
        extent->asked = 0;
        segment->used -= extent->bytes;
        segment->pool->used -= extent->bytes;
        join(extent);
        if (before != NULL) join(before);
        atomic_store(&unsettled, true);
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

bool pool_find(CUdeviceptr address, struct place *place) {
    pthread_mutex_lock(&lock);
    struct segment *segment;
    struct extent *before, *extent = extent_find(address, &segment, &before);
    if (extent != NULL)
        *place = (struct place){.gpu = sim_gpu(segment->pool->device),
                                .base = segment->base + extent->offset,
                                .bytes = extent->asked,
                                .kind = BLOCK_POOL,
                                .owner = segment->pool};
    pthread_mutex_unlock(&lock);
    return extent != NULL;
}

/* ---- pools of other processes ---- */

bool pool_exportable(CUmemoryPool pool, unsigned *gpu) {
    pthread_mutex_lock(&lock);
    bool may = known(pool) && pool->file < 0 && (pool->handle_types & HANDLE_POSIX_FD);
    if (may) *gpu = sim_gpu(pool->device);
    pthread_mutex_unlock(&lock);
    return may;
}

CUmemoryPool pool_import(int file) {
    pthread_mutex_lock(&lock);
    struct pool *pool = file >= 0 ? pool_new(0) : NULL;
    if (pool != NULL) pool->file = file;
    pthread_mutex_unlock(&lock);
    return pool;
}

int pool_imported_file(CUmemoryPool pool) {
    pthread_mutex_lock(&lock);
    int file = known(pool) ? pool->file : -1;
    pthread_mutex_unlock(&lock);
    return file;
}

/* ---- the calls ---- */

static CUresult device_of(const struct location *location, int type, CUdevice *device) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS) return result;
    if (location == NULL || type != TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    if (location->type != LOCATION_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    *device = location->id;
    return sim_valid(*device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const struct properties *properties) {
    ENTERED();
    CUdevice device;
    if (pool == NULL || properties == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = device_of(&properties->location, properties->type, &device);
    if (result != CUDA_SUCCESS) return result;
    if (properties->handle_types & ~HANDLE_POSIX_FD) return CUDA_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&lock);
    struct pool *made = pool_new(device);
    if (made == NULL) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
        made->handle_types = properties->handle_types;
        made->most = properties->most;
        *pool = made;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    ENTERED();
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS) return result;
    pthread_mutex_lock(&lock);
    if (!known(pool) || pool == default_pool[pool->device]) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else {
        if (current_pool[pool->device] == pool) current_pool[pool->device] = NULL;
        pool->destroyed = true;
        trim(pool, 0);
        if (pool->used == 0) pool_end(pool);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    ENTERED();
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS) return result;
    pthread_mutex_lock(&lock);
    if (known(pool)) trim(pool, keep);
    else result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult set(struct pool *pool, int attribute, const void *value) {
    if (attribute >= REUSE_FOLLOW_EVENTS && attribute <= REUSE_INTERNAL) {
        pool->reuse[attribute] = *(const int *)value;
        return CUDA_SUCCESS;
    }
    uint64_t number = *(const uint64_t *)value;
    if (attribute == RELEASE_THRESHOLD) {
        pool->threshold = number;
        return CUDA_SUCCESS;
    }
    /* A high-water mark can only be reset. */
    if (number != 0 || (attribute != RESERVED_HIGH && attribute != USED_HIGH)) return CUDA_ERROR_INVALID_VALUE;
    if (attribute == RESERVED_HIGH) pool->reserved_high = pool->reserved;
    else pool->used_high = pool->used;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value) {
    ENTERED();
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS) return result;
    pthread_mutex_lock(&lock);
    result = known(pool) && value != NULL ? set(pool, attribute, value) : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult get(const struct pool *pool, int attribute, void *value) {
    switch (attribute) {
    case REUSE_FOLLOW_EVENTS:
    case REUSE_FOLLOW_EVENTS + 1:
    case REUSE_INTERNAL: *(int *)value = pool->reuse[attribute]; return CUDA_SUCCESS;
    case RELEASE_THRESHOLD: *(uint64_t *)value = pool->threshold; return CUDA_SUCCESS;
    case RESERVED_CURRENT: *(uint64_t *)value = pool->reserved; return CUDA_SUCCESS;
    case RESERVED_HIGH: *(uint64_t *)value = pool->reserved_high; return CUDA_SUCCESS;
    case USED_CURRENT: *(uint64_t *)value = pool->used; return CUDA_SUCCESS;
    case USED_HIGH: *(uint64_t *)value = pool->used_high; return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value) {
    ENTERED();
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS) return result;
    pthread_mutex_lock(&lock);
    result = known(pool) && value != NULL ? get(pool, attribute, value) : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- which pool a device uses ---- */

static CUresult get_default(CUmemoryPool *pool, CUdevice device) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS) return result;
    if (pool == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    *pool = default_of(device);
    pthread_mutex_unlock(&lock);
    return *pool != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult get_current(CUmemoryPool *pool, CUdevice device) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS) return result;
    if (pool == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    *pool = pool_current(device);
    return *pool != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult set_current(CUdevice device, CUmemoryPool pool) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS) return result;
    if (!sim_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    if (!known(pool) || pool->device != device) result = CUDA_ERROR_INVALID_VALUE;
    else current_pool[device] = pool;
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    ENTERED();
    return get_default(pool, device);
}

EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    ENTERED();
    return get_current(pool, device);
}

EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    ENTERED();
    return set_current(device, pool);
}

EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, const struct location *location, int type) {
    ENTERED();
    CUdevice device;
    CUresult result = device_of(location, type, &device);
    return result == CUDA_SUCCESS ? get_default(pool, device) : result;
}

EXPORT CUresult cuMemGetMemPool(CUmemoryPool *pool, const struct location *location, int type) {
    ENTERED();
    CUdevice device;
    CUresult result = device_of(location, type, &device);
    return result == CUDA_SUCCESS ? get_current(pool, device) : result;
}

EXPORT CUresult cuMemSetMemPool(const struct location *location, int type, CUmemoryPool pool) {
    ENTERED();
    CUdevice device;
    CUresult result = device_of(location, type, &device);
    return result == CUDA_SUCCESS ? set_current(device, pool) : result;
}

EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool pool, const void *accesses, size_t count) {
    ENTERED();
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS) return result;
    pthread_mutex_lock(&lock);
    if (!known(pool) || (accesses == NULL && count > 0)) result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT CUresult cuMemPoolGetAccess(int *flags, CUmemoryPool pool, const struct location *location) {
    ENTERED();
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS) return result;
    if (flags == NULL || location == NULL) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    if (!known(pool)) result = CUDA_ERROR_INVALID_VALUE;
    else *flags = location->type == LOCATION_DEVICE && location->id == pool->device ? 3 /* read and write */ : 0;
    pthread_mutex_unlock(&lock);
    return result;
}
