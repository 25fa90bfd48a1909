#include "pools.h"

#include "charge.h"
#include "devices.h"
#include "fork.h"
#include "ledger.h"
#include "resolve.h"

#include <stddef.h>
#include <stdlib.h>

#define UNIT 512 /* what a pool hands out is a multiple of this */

/* Special streams: their device is that of the current context. */
#define LAST_SPECIAL_STREAM 2

static struct pool *all; /* under `making` */
static struct lock making;
static _Atomic(struct pool *) current[DEVICES]; /* what cuDeviceGetMemPool says, until somebody changes it */
static _Atomic(struct pool *) graphs[DEVICES];

static _Thread_local struct {
    uint64_t generation;
    CUstream stream;
    struct pool *pool;
} last;

/* Bytes that this thread has taken from any pool since it last looked at one. */
static _Thread_local uint64_t unchecked;

/* ---- which pool ---- */

static void pools_look(int slot);

static struct pool *make(CUmemoryPool handle, CUdevice device, int slot) {
    struct pool *pool;
    lock_take(&making);
    for (pool = all; pool; pool = pool->next)
        if (pool->dead && !pool->live && !pool->charged) break;
    if (!pool && (pool = calloc(1, sizeof *pool))) {
        pool->next = all;
        all = pool;
    }
    if (pool) {
        pool->handle = handle;
        pool->device = device;
        pool->slot = slot;
        pool->reserved = 0;
        pool->dead = false;
    }
    lock_drop(&making);
    charge_look_first(pools_look);
    return pool;
}

bool pools_add(CUmemoryPool handle, int slot) {
    struct pool *pool = make(handle, 0, slot);
    struct ledger_entry replaced,
        entry = {.kind = LEDGER_POOL, .key = (uint64_t)(uintptr_t)handle, .owner = (uint64_t)(uintptr_t)pool};
    return pool && ledger_put(&entry, &replaced);
}

static struct pool *known(CUmemoryPool handle) {
    struct ledger_entry entry;
    return ledger_get(LEDGER_POOL, (uint64_t)(uintptr_t)handle, &entry) ? (struct pool *)(uintptr_t)entry.owner : NULL;
}

bool pools_known(CUmemoryPool handle) { return known(handle) != NULL; }

/* A handle that the program got neither from cuMemPoolCreate nor by asking for a location's: some device's default
 * pool, or one that lies where the calling thread is. */
static struct pool *adopt(CUmemoryPool handle, CUresult *error) {
    CUdevice home = -1;
    for (CUdevice device = 0; device < devices_visible() && home < 0; device++) {
        CUmemoryPool theirs = NULL;
        if (REAL(cuDeviceGetDefaultMemPool)(&theirs, device) == CUDA_SUCCESS && theirs == handle) home = device;
    }
    struct place place;
    if (home < 0) {
        *error = devices_here(&place);
        if (*error != CUDA_SUCCESS) return NULL;
        home = place.device;
    }
    int slot = devices_slot(home, error);
    if (slot == NO_SLOT) return NULL;
    *error = CUDA_ERROR_OUT_OF_MEMORY;
    return pools_add(handle, slot) ? known(handle) : NULL;
}

struct pool *pools_find(CUmemoryPool handle, CUresult *error) {
    struct pool *pool = known(handle);
    return pool ? pool : adopt(handle, error);
}

static struct pool *current_of(CUdevice device, CUresult *error) {
    if (device < 0 || device >= DEVICES) {
        *error = CUDA_ERROR_NOT_PERMITTED;
        return NULL;
    }
    struct pool *pool = atomic_load_explicit(&current[device], memory_order_acquire);
    if (pool) return pool;
    CUmemoryPool handle = NULL;
    uint64_t generation = atomic_load(&devices_now.generation);
    *error = REAL(cuDeviceGetMemPool)(&handle, device);
    if (*error != CUDA_SUCCESS) return NULL;
    pool = known(handle);
    if (!pool) {
        int slot = devices_slot(device, error);
        if (slot == NO_SLOT) return NULL;
        *error = CUDA_ERROR_OUT_OF_MEMORY;
        if (!pools_add(handle, slot)) return NULL;
        pool = known(handle);
    }
    if (generation == atomic_load(&devices_now.generation)) atomic_store(&current[device], pool);
    return pool;
}

/* The device of a stream of the program's own. */
static CUresult stream_device(CUstream stream, CUdevice *device) {
    if (real_exists(HOOK_cuStreamGetDevice)) return REAL(cuStreamGetDevice)(stream, device);
    CUcontext context, popped;
    CUresult result = REAL(cuStreamGetCtx)(stream, &context);
    if (result != CUDA_SUCCESS) return result;
    result = REAL(cuCtxPushCurrent_v2)(context);
    if (result != CUDA_SUCCESS) return result;
    result = REAL(cuCtxGetDevice)(device);
    REAL(cuCtxPopCurrent_v2)(&popped);
    return result;
}

struct pool *pools_of_stream(CUstream stream, CUresult *error) {
    struct place place = {.device = 0};
    /* One GPU, the common case: there is nothing to find out. */
    if (devices_visible() == 1) return current_of(0, error);
    if ((uintptr_t)stream <= LAST_SPECIAL_STREAM) {
        *error = devices_here(&place);
        return *error == CUDA_SUCCESS ? current_of(place.device, error) : NULL;
    }
    uint64_t generation = atomic_load_explicit(&devices_now.generation, memory_order_acquire);
    if (last.stream == stream && last.generation == generation) return last.pool;
    *error = stream_device(stream, &place.device);
    struct pool *pool = *error == CUDA_SUCCESS ? current_of(place.device, error) : NULL;
    if (pool) {
        last.stream = stream;
        last.pool = pool;
        last.generation = generation;
    }
    return pool;
}

struct pool *pools_of_graphs(CUdevice device, CUresult *error) {
    int slot = devices_slot(device, error);
    if (slot == NO_SLOT) return NULL;
    struct pool *pool = atomic_load(&graphs[device]), *none = NULL;
    if (pool) return pool;
    *error = CUDA_ERROR_OUT_OF_MEMORY;
    struct pool *made = make(NULL, device, slot);
    if (!made || atomic_compare_exchange_strong(&graphs[device], &none, made)) return made;
    made->dead = true; /* another thread was faster */
    return none;
}

void pools_changed(void) {
    devices_changed();
    for (CUdevice device = 0; device < DEVICES; device++) atomic_store(&current[device], NULL);
}

void pools_drop(CUmemoryPool handle) {
    struct ledger_entry entry;
    pools_changed();
    if (!ledger_take(LEDGER_POOL, (uint64_t)(uintptr_t)handle, &entry)) return;
    struct pool *pool = (struct pool *)(uintptr_t)entry.owner;
    pool->dead = true;
    pool_look(pool);
}

/* ---- how much ---- */

/* What the driver has reserved for it. Of a pool that the program has destroyed the driver tells nothing any more. */
static uint64_t ask(struct pool *pool) {
    uint64_t reserved = 0;
    CUresult result;
    if (atomic_load(&pool->dead)) return atomic_load(&pool->live);
    if (pool->handle)
        result = REAL(cuMemPoolGetAttribute)(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
    else
        result = REAL(cuDeviceGetGraphMemAttribute)(pool->device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved);
    return result == CUDA_SUCCESS ? reserved : pool->charged - pool->pending;
}

/* Brings the charge to what is reserved; `finished` of what was pending is no longer so. False: that would need more
 * than the container may have. */
__attribute__((cold, noinline)) static bool settle(struct pool *pool, uint64_t finished) {
    lock_take(&pool->lock);
    pool->pending -= finished;
    uint64_t reserved = ask(pool);
    uint64_t target = reserved + pool->pending, before = pool->charged;
    pool->charged = target;
    atomic_store_explicit(&pool->reserved, reserved, memory_order_relaxed);
    unchecked = 0;
    lock_drop(&pool->lock);
    if (before > target) charge_give(pool->slot, before - target);
    if (before >= target || charge_take(pool->slot, target - before, WIRE_FOR_MEMORY) == CUDA_SUCCESS) return true;
    lock_take(&pool->lock);
    pool->charged -= target - before;
    lock_drop(&pool->lock);
    return false;
}

static CUresult grow(struct pool *pool, uint64_t bytes, struct growth *growth) {
    bytes = bytes > UINT64_MAX - POOL_PIECE ? UINT64_MAX : (bytes + POOL_PIECE - 1) & ~(POOL_PIECE - 1);
    CUresult result = charge_take(pool->slot, bytes, WIRE_FOR_MEMORY);
    if (result != CUDA_SUCCESS) return result;
    growth->bytes = bytes;
    lock_take(&pool->lock);
    pool->charged += bytes;
    pool->pending += bytes;
    lock_drop(&pool->lock);
    return CUDA_SUCCESS;
}

CUresult pool_begin(struct pool *pool, uint64_t bytes, struct growth *growth) {
    *growth = (struct growth){.live = bytes > INT64_MAX ? 0 : (bytes + UNIT - 1) & ~(uint64_t)(UNIT - 1)};
    if (bytes > INT64_MAX) return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t live = atomic_fetch_add_explicit(&pool->live, growth->live, memory_order_relaxed) + growth->live;
    unchecked += growth->live;
    if (live <= atomic_load_explicit(&pool->reserved, memory_order_relaxed)) {
        growth->check = unchecked >= CHECK_EVERY || charge_pressure(pool->slot);
        return CUDA_SUCCESS;
    }
    growth->check = true;
    settle(pool, 0);
    uint64_t reserved = atomic_load(&pool->reserved);
    if (live <= reserved) return CUDA_SUCCESS;
    CUresult result = grow(pool, live - reserved, growth);
    if (result != CUDA_SUCCESS) atomic_fetch_sub(&pool->live, growth->live);
    return result;
}

CUresult pool_begin_graph(struct pool *pool, uint64_t bytes, struct growth *growth) {
    uint64_t used = 0;
    *growth = (struct growth){.check = true};
    settle(pool, 0);
    uint64_t reserved = atomic_load(&pool->reserved);
    REAL(cuDeviceGetGraphMemAttribute)(pool->device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used);
    uint64_t idle = reserved > used ? reserved - used : 0;
    return bytes > idle ? grow(pool, bytes - idle, growth) : CUDA_SUCCESS;
}

bool pool_end(struct pool *pool, const struct growth *growth, bool succeeded) {
    if (!succeeded) atomic_fetch_sub(&pool->live, growth->live);
    return growth->check ? settle(pool, growth->bytes) : true;
}

void pool_freed(struct pool *pool, uint64_t bytes) {
    atomic_fetch_sub_explicit(&pool->live, bytes, memory_order_relaxed);
    if (charge_pressure(pool->slot) || atomic_load_explicit(&pool->dead, memory_order_relaxed)) settle(pool, 0);
}

void pool_look(struct pool *pool) {
    if (pool->slot != NO_SLOT) settle(pool, 0);
}

/* Brings the charge of all pools of a slot to what they have, where that may be less. They give back at a synchronise,
 * which nobody watches: so this comes before the scheduler is asked for more. */
static void pools_look(int slot) {
    lock_take(&making);
    struct pool *pool = all; /* only its head ever changes */
    lock_drop(&making);
    for (; pool; pool = pool->next)
        if (pool->slot == slot && atomic_load(&pool->reserved) > atomic_load(&pool->live)) settle(pool, 0);
}

static bool of_pool(const struct ledger_entry *entry, void *pool) {
    return entry->kind == LEDGER_POINTER && entry->pooled && entry->owner == (uint64_t)(uintptr_t)pool;
}

void pools_slot_gone(int slot) {
    lock_take(&making);
    struct pool *first = all;
    lock_drop(&making);
    for (struct pool *pool = first; pool; pool = pool->next) {
        if (pool->slot != slot) continue;
        settle(pool, 0);
        if (atomic_load(&pool->reserved)) continue;
        ledger_sweep(of_pool, pool);
        atomic_store(&pool->live, 0);
    }
}

static void pools_forget(void) {
    all = NULL;
    atomic_store(&making.word, 0);
    for (CUdevice device = 0; device < DEVICES; device++) {
        atomic_store(&current[device], NULL);
        atomic_store(&graphs[device], NULL);
    }
}
FORGET_IN_CHILD(pools_forget);
