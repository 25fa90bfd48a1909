/* What a program may ask about pools and do with them. */
#include "pool.h"

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

/* Managed memory lies on the first device where no device is named; pinned memory on the host: a device of −1. */
static CUresult device_of(const struct location *location, int type, CUdevice *device) {
    REQUIRE(sim_ready());
    if (location == NULL || (type != TYPE_PINNED && type != TYPE_MANAGED)) return CUDA_ERROR_INVALID_VALUE;
    *device = type == TYPE_MANAGED ? 0 : -1;
    if (location->type == LOCATION_HOST || (location->type == 0 && type == TYPE_MANAGED)) return CUDA_SUCCESS;
    if (location->type != LOCATION_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    *device = location->id;
    return sim_valid(*device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const struct properties *properties) {
    ENTERED();
    CUdevice device;
    if (pool == NULL || properties == NULL) return CUDA_ERROR_INVALID_VALUE;
    REQUIRE(device_of(&properties->location, properties->type, &device));
    if (properties->handle_types & ~HANDLE_POSIX_FD) return CUDA_ERROR_NOT_SUPPORTED;
    HOLD(&pool_lock);
    struct pool *made = pool_new(device < 0 ? 0 : device);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    if (device < 0) gate_tie();
    made->host = device < 0;
    made->handle_types = properties->handle_types;
    made->most = properties->most;
    *pool = made;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    ENTERED_READY();
    HOLD(&pool_lock);
    if (!pool_known(pool) || pool == pool_default(pool->device) || pool == pool_default_of_host())
        return CUDA_ERROR_INVALID_VALUE;
    if (pool_of_device[pool->device] == pool) pool_of_device[pool->device] = NULL;
    pool->destroyed = true;
    pool_trim(pool, 0);
    pool_end_if_unused(pool);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    ENTERED_READY();
    HOLD(&pool_lock);
    if (!pool_known(pool)) return CUDA_ERROR_INVALID_VALUE;
    pool_trim(pool, keep);
    return CUDA_SUCCESS;
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
    if (attribute == RESERVED_HIGH)
        pool->reserved_high = pool->reserved;
    else
        pool->used_high = pool->used;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value) {
    ENTERED_READY();
    HOLD(&pool_lock);
    return pool_known(pool) && value != NULL ? set(pool, attribute, value) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult get(const struct pool *pool, int attribute, void *value) {
    const uint64_t *const figures[] = {
        [RELEASE_THRESHOLD] = &pool->threshold, [RESERVED_CURRENT] = &pool->reserved,
        [RESERVED_HIGH] = &pool->reserved_high, [USED_CURRENT] = &pool->used,
        [USED_HIGH] = &pool->used_high,
    };
    if (attribute >= REUSE_FOLLOW_EVENTS && attribute <= REUSE_INTERNAL) {
        *(int *)value = pool->reuse[attribute];
        return CUDA_SUCCESS;
    }
    if (attribute < RELEASE_THRESHOLD || attribute > USED_HIGH) return CUDA_ERROR_INVALID_VALUE;
    *(uint64_t *)value = *figures[attribute];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value) {
    ENTERED_READY();
    HOLD(&pool_lock);
    return pool_known(pool) && value != NULL ? get(pool, attribute, value) : CUDA_ERROR_INVALID_VALUE;
}

/* ---- which pool a device uses ---- */

static CUresult get_default(CUmemoryPool *pool, CUdevice device) {
    REQUIRE(sim_ready());
    if (pool == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    HOLD(&pool_lock);
    *pool = pool_default(device);
    return *pool != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult get_current(CUmemoryPool *pool, CUdevice device) {
    REQUIRE(sim_ready());
    if (pool == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    *pool = pool_current(device);
    return *pool != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult set_current(CUdevice device, CUmemoryPool pool) {
    REQUIRE(sim_ready());
    if (!sim_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    HOLD(&pool_lock);
    if (!pool_known(pool) || pool->device != device || pool->host) return CUDA_ERROR_INVALID_VALUE;
    pool_of_device[device] = pool;
    return CUDA_SUCCESS;
}

ENTRY(cuDeviceGetDefaultMemPool, (CUmemoryPool *pool, CUdevice device), get_default(pool, device));

ENTRY(cuDeviceGetMemPool, (CUmemoryPool *pool, CUdevice device), get_current(pool, device));

ENTRY(cuDeviceSetMemPool, (CUdevice device, CUmemoryPool pool), set_current(device, pool));

static CUresult get_hosts(CUmemoryPool *pool) {
    if (pool == NULL) return CUDA_ERROR_INVALID_VALUE;
    HOLD(&pool_lock);
    *pool = pool_default_of_host();
    return *pool != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, const struct location *location, int type) {
    ENTERED();
    CUdevice device;
    REQUIRE(device_of(location, type, &device));
    return device < 0 ? get_hosts(pool) : get_default(pool, device);
}

EXPORT CUresult cuMemGetMemPool(CUmemoryPool *pool, const struct location *location, int type) {
    ENTERED();
    CUdevice device;
    REQUIRE(device_of(location, type, &device));
    return device < 0 ? get_hosts(pool) : get_current(pool, device);
}

EXPORT CUresult cuMemSetMemPool(const struct location *location, int type, CUmemoryPool pool) {
    ENTERED();
    CUdevice device;
    REQUIRE(device_of(location, type, &device));
    return device < 0 ? CUDA_ERROR_NOT_SUPPORTED : set_current(device, pool);
}

struct access { /* CUmemAccessDesc */
    struct location location;
    int flags;
};

EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool pool, const struct access *accesses, size_t count) {
    ENTERED_READY();
    HOLD(&pool_lock);
    if (!pool_known(pool) || (accesses == NULL && count > 0)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (accesses[i].location.type == LOCATION_DEVICE && accesses[i].flags != 0 &&
            accesses[i].location.id != pool->device)
            gate_tie();
    return CUDA_SUCCESS;
}
