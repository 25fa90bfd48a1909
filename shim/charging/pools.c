#include "pools.h"

#include "charge.h"
#include "devices.h"
#include "fork.h"
#include "ledger.h"
#include "resolve.h"

#include <stddef.h>
#include <stdlib.h>

static struct pool *all; /* under `making` */
static struct lock making;
static _Atomic(struct pool *) current[DEVICES]; /* what cuDeviceGetMemPool says, until somebody changes it */
static _Atomic(struct pool *) graphs[DEVICES];

static _Thread_local struct {
    uint64_t generation;
    CUstream stream;
    struct pool *pool;
} last;

static void pools_look(int slot);

/* Under `making`. A dead pool becomes one of the same GPU again: what somebody still waits for on account of it is
 * given back there. */
static struct pool *make(CUmemoryPool handle, CUdevice device, int slot) {
    struct pool *pool;
    for (pool = all; pool; pool = pool->next)
        if (pool->dead && pool->slot == slot && !pool->live && !pool->charged) break;
    if (!pool && (pool = calloc(1, sizeof *pool))) {
        pool->next = all;
        all = pool;
    }
    if (!pool) return NULL;
    pool->handle = handle;
    pool->device = device;
    pool->slot = slot;
    pool->reserved = 0;
    pool->visit = NO_VISIT;
    pool->leaving = pool->dead = false;
    charge_look_first(pools_look);
    return pool;
}

static struct pool *known(CUmemoryPool handle) {
    struct ledger_entry entry;
    return ledger_get(LEDGER_POOL, (uint64_t)(uintptr_t)handle, &entry) ? (struct pool *)(uintptr_t)entry.owner : NULL;
}

/* Under `making`. */
static struct pool *add(CUmemoryPool handle, int slot) {
    struct pool *pool = make(handle, 0, slot);
    struct ledger_entry replaced,
        entry = {.kind = LEDGER_POOL, .key = (uint64_t)(uintptr_t)handle, .owner = (uint64_t)(uintptr_t)pool};
    return pool && ledger_put(&entry, &replaced) ? pool : NULL;
}

bool pools_add(CUmemoryPool handle, int slot) {
    lock_take(&making);
    bool added = add(handle, slot) != NULL;
    lock_drop(&making);
    return added;
}

struct pool *pools_meet(CUmemoryPool handle, int slot) {
    lock_take(&making);
    struct pool *pool = known(handle);
    if (!pool) pool = add(handle, slot);
    lock_drop(&making);
    return pool;
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
    return pools_meet(handle, slot);
}

struct pool *pools_find(CUmemoryPool handle, CUresult *error) {
    struct pool *pool = known(handle);
    return pool ? pool : adopt(handle, error);
}

__attribute__((cold, noinline)) static struct pool *ask_current(CUdevice device, CUresult *error) {
    CUmemoryPool handle = NULL;
    uint64_t generation = atomic_load(&devices_now.generation);
    *error = REAL(cuDeviceGetMemPool)(&handle, device);
    if (*error != CUDA_SUCCESS) return NULL;
    struct pool *pool = known(handle);
    if (!pool) {
        int slot = devices_slot(device, error);
        if (slot == NO_SLOT) return NULL;
        *error = CUDA_ERROR_OUT_OF_MEMORY;
        if (!(pool = pools_meet(handle, slot))) return NULL;
    }
    atomic_store(&current[device], pool);
    /* Somebody chose another one meanwhile, and may have emptied the place before this thread filled it. */
    if (generation != atomic_load(&devices_now.generation)) atomic_store(&current[device], NULL);
    return pool;
}

static struct pool *current_of(CUdevice device, CUresult *error) {
    if (device < 0 || device >= DEVICES) {
        *error = CUDA_ERROR_NOT_PERMITTED;
        return NULL;
    }
    struct pool *pool = atomic_load_explicit(&current[device], memory_order_acquire);
    return pool ? pool : ask_current(device, error);
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

__attribute__((noinline)) static struct pool *among_several(CUstream stream, CUresult *error) {
    struct place place;
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

struct pool *pools_of_stream(CUstream stream, CUresult *error) {
    /* One GPU, the common case: there is nothing to find out. */
    return devices_visible() == 1 ? current_of(0, error) : among_several(stream, error);
}

struct pool *pools_of_graphs(CUdevice device, CUresult *error) {
    int slot = devices_slot(device, error);
    if (slot == NO_SLOT) return NULL;
    struct pool *pool = atomic_load(&graphs[device]);
    if (pool) return pool;
    lock_take(&making);
    pool = atomic_load(&graphs[device]);
    if (!pool) pool = make(NULL, device, slot);
    atomic_store(&graphs[device], pool);
    lock_drop(&making);
    *error = CUDA_ERROR_OUT_OF_MEMORY;
    return pool;
}

void pools_changed(void) {
    devices_changed();
    for (CUdevice device = 0; device < DEVICES; device++) atomic_store(&current[device], NULL);
    devices_changed(); /* a thread may have remembered between the two what was current before */
}

struct pool *pools_leave(CUmemoryPool handle) {
    struct pool *pool = known(handle);
    if (pool && pool->slot != NO_SLOT) {
        /* The driver does the same, and tells nothing of the pool after that. */
        REAL(cuMemPoolTrimTo)(handle, 0);
        pool_look(pool);
    }
    if (pool) atomic_store(&pool->leaving, true);
    pools_changed();
    return pool;
}

void pools_left(struct pool *pool, bool destroyed) {
    struct ledger_entry entry;
    pools_changed();
    if (!pool) return;
    if (destroyed) {
        ledger_take_owned(LEDGER_POOL, (uint64_t)(uintptr_t)pool->handle, (uint64_t)(uintptr_t)pool, &entry);
        atomic_store(&pool->dead, true);
    }
    atomic_store(&pool->leaving, false);
    pool_look(pool);
}

/* Brings the charge of all pools of a slot to what they have, where that may be less. They give back at a synchronise,
 * which nobody watches: so this comes before the scheduler is asked for more. */
static void pools_look(int slot) {
    lock_take(&making);
    struct pool *pool = all; /* only its head ever changes */
    lock_drop(&making);
    for (; pool; pool = pool->next)
        if (pool->slot == slot && atomic_load(&pool->reserved) > atomic_load(&pool->live)) pool_look(pool);
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
        pool_look(pool);
        if (atomic_load(&pool->reserved) && !atomic_load(&pool->dead)) continue;
        ledger_sweep(of_pool, pool);
        atomic_store(&pool->live, 0);
        pool_look(pool);
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
