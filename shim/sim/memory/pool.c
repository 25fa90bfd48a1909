/* Stream-ordered memory. A pool reserves segments of the card, 32 MiB or multiples of it, and hands out parts of them.
 * What is freed can be handed out again at once; whole free segments go back when the program synchronises, as far as
 * the pool has more reserved than its release threshold. */
#include "pool.h"

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

pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
struct pool *pool_of_device[CARD_GPUS];
static struct pool *pools; /* all that live */
static struct pool *default_pool[CARD_GPUS];
static _Atomic bool unsettled; /* something was freed since pools were last settled */

/* ---- pools ---- */

struct pool *pool_new(CUdevice device) {
    struct pool *pool = sim_new(sizeof *pool);
    if (pool == NULL) return NULL;
    *pool = (struct pool){.device = device, .file = -1, .reuse = {0, 1, 1, 1}, .next = pools};
    pools = pool;
    return pool;
}

bool pool_known(const struct pool *pool) {
    for (const struct pool *one = pools; one != NULL; one = one->next)
        if (one == pool) return !one->destroyed;
    return false;
}

struct pool *pool_default(CUdevice device) {
    if (default_pool[device] == NULL) default_pool[device] = pool_new(device);
    return default_pool[device];
}

struct pool *pool_default_of_host(void) {
    static struct pool *only;
    if (only == NULL && (only = pool_new(0)) != NULL) only->host = true;
    return only;
}

CUmemoryPool pool_current(CUdevice device) {
    HOLD(&pool_lock);
    return pool_of_device[device] != NULL ? pool_of_device[device] : pool_default(device);
}

void pool_end_if_unused(struct pool *pool) {
    if (!pool->destroyed || pool->used > 0) return;
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
    if (pool->host)
        segment->base = (CUdeviceptr)(uintptr_t)malloc(bytes);
    else if (heap_take(sim_gpu(pool->device), segment, bytes, BLOCK_POOL, &segment->base) != CUDA_SUCCESS)
        goto failed;
    if (segment->base == 0) goto failed;
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
    if (pool->host)
        free((void *)(uintptr_t)segment->base);
    else
        heap_give(segment->base);
    for (struct extent *extent = segment->extents, *next; extent != NULL; extent = next) {
        next = extent->next;
        free(extent);
    }
    free(segment);
}

void pool_trim(struct pool *pool, uint64_t keep) {
    for (struct segment *segment = pool->segments, *next; segment != NULL; segment = next) {
        next = segment->next;
        if (pool->reserved <= keep) return;
        if (segment->used == 0 && segment->bytes <= pool->reserved - keep) segment_end(segment);
    }
}

void pool_settle(void) {
    if (!atomic_load_explicit(&unsettled, memory_order_relaxed)) return;
    HOLD(&pool_lock);
    atomic_store(&unsettled, false);
    for (struct pool *pool = pools, *next; pool != NULL; pool = next) {
        next = pool->next;
        pool_trim(pool, pool->destroyed ? 0 : pool->threshold);
        pool_end_if_unused(pool);
    }
}

void pool_forget(CUdevice device) {
    HOLD(&pool_lock);
    for (struct pool *pool = pools; pool != NULL; pool = pool->next) {
        if (pool->device != device || pool->host) continue;
        while (pool->segments != NULL) segment_end(pool->segments);
        pool->used = 0;
    }
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
        pool_trim(pool, 0);
        segment = segment_new(pool, round_up(bytes, CARD_UNIT));
    }
    return segment != NULL && extent_take(segment, bytes, asked, address);
}

CUresult pool_take(CUmemoryPool pool, uint64_t bytes, CUdeviceptr *address) {
    if (address == NULL || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > 1ull << 46) return CUDA_ERROR_OUT_OF_MEMORY;
    if (!card_join()) return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t rounded = round_up(bytes, GRANULE);
    HOLD(&pool_lock);
    if (!pool_known(pool)) return CUDA_ERROR_INVALID_VALUE;
    if (pool->file >= 0) return CUDA_ERROR_NOT_PERMITTED; /* only its exporter allocates from it */
    if (!from_segments(pool, rounded, bytes, address)) return CUDA_ERROR_OUT_OF_MEMORY;
    pool->used += rounded;
    if (pool->used > pool->used_high) pool->used_high = pool->used;
    return CUDA_SUCCESS;
}

static struct segment *segment_of_host(CUdeviceptr address) {
    for (struct pool *pool = pools; pool != NULL; pool = pool->next)
        for (struct segment *one = pool->host ? pool->segments : NULL; one != NULL; one = one->next)
            if (address - one->base < one->bytes) return one;
    return NULL;
}

/* The extent in use that `address` lies in. */
static struct extent *extent_find(CUdeviceptr address, struct segment **segment, struct extent **before) {
    struct place place;
    bool on_card = heap_find(address, &place);
    if (on_card && place.kind != BLOCK_POOL) return NULL;
    *segment = on_card ? (struct segment *)place.owner : segment_of_host(address);
    if (*segment == NULL) return NULL;
    *before = NULL;
    uint64_t offset = address - (*segment)->base;
    for (struct extent *extent = (*segment)->extents; extent != NULL; *before = extent, extent = extent->next)
        if (offset < extent->offset + extent->bytes) return extent->asked != 0 ? extent : NULL;
    return NULL;
}

CUresult pool_free(CUdeviceptr address) {
    HOLD(&pool_lock);
    struct segment *segment;
    struct extent *before, *extent = extent_find(address, &segment, &before);
    if (extent == NULL || address != segment->base + extent->offset) return CUDA_ERROR_INVALID_VALUE;
    extent->asked = 0;
    segment->used -= extent->bytes;
    segment->pool->used -= extent->bytes;
    join(extent);
    if (before != NULL) join(before);
    atomic_store(&unsettled, true);
    return CUDA_SUCCESS;
}

bool pool_find(CUdeviceptr address, struct place *place) {
    HOLD(&pool_lock);
    struct segment *segment;
    struct extent *before, *extent = extent_find(address, &segment, &before);
    if (extent != NULL)
        *place = (struct place){.gpu = sim_gpu(segment->pool->device),
                                .base = segment->base + extent->offset,
                                .bytes = extent->asked,
                                .kind = BLOCK_POOL,
                                .owner = segment->pool};
    return extent != NULL;
}

/* ---- pools of other processes ---- */

bool pool_exportable(CUmemoryPool pool, unsigned *gpu) {
    HOLD(&pool_lock);
    bool may = pool_known(pool) && pool->file < 0 && (pool->handle_types & HANDLE_POSIX_FD);
    if (may) *gpu = sim_gpu(pool->device);
    return may;
}

CUmemoryPool pool_import(int file) {
    HOLD(&pool_lock);
    struct pool *pool = file >= 0 ? pool_new(0) : NULL;
    if (pool != NULL) pool->file = file;
    return pool;
}

int pool_imported_file(CUmemoryPool pool) {
    HOLD(&pool_lock);
    return pool_known(pool) ? pool->file : -1;
}
