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
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS) return result;
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
    CUresult result = device_of(&properties->location, properties->type, &device);
    if (result != CUDA_SUCCESS) return result;
    if (properties->handle_types & ~HANDLE_POSIX_FD) return CUDA_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&pool_lock);
    struct pool *made = pool_new(device < 0 ? 0 : device);
    if (made == NULL) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
        if (device < 0) gate_tie();
        made->host = device < 0;
        made->handle_types = properties->handle_types;
        made->most = properties->most;
        *pool = made;
    }
    pthread_mutex_unlock(&pool_lock);
    return result;
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    ENTERED();
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS) return result;
    pthread_mutex_lock(&pool_lock);
    if (!pool_known(pool) || pool == pool_default(pool->device) || pool == pool_default_of_host()) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else {
        if (pool_of_device[pool->device] == pool) pool_of_device[pool->device] = NULL;
        pool->destroyed = true;
        pool_trim(pool, 0);
        pool_end_if_unused(pool);
    }
    pthread_mutex_unlock(&pool_lock);
    return result;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    ENTERED();
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS) return result;
    pthread_mutex_lock(&pool_lock);
    if (pool_known(pool))
        pool_trim(pool, keep);
    else
        result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&pool_lock);
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
    if (attribute == RESERVED_HIGH)
        pool->reserved_high = pool->reserved;
    else
        pool->used_high = pool->used;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value) {
    ENTERED();
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS) return result;
    pthread_mutex_lock(&pool_lock);
    result = pool_known(pool) && value != NULL ? set(pool, attribute, value) : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&pool_lock);
    return result;
}

static CUresult get(const struct pool *pool, int attribute, void *value) {
    switch (attribute) {
        case REUSE_FOLLOW_EVENTS:
        case REUSE_FOLLOW_EVENTS + 1:
        case REUSE_INTERNAL:
            *(int *)value = pool->reuse[attribute];
            return CUDA_SUCCESS;
        case RELEASE_THRESHOLD:
            *(uint64_t *)value = pool->threshold;
            return CUDA_SUCCESS;
        case RESERVED_CURRENT:
            *(uint64_t *)value = pool->reserved;
            return CUDA_SUCCESS;
        case RESERVED_HIGH:
            *(uint64_t *)value = pool->reserved_high;
            return CUDA_SUCCESS;
        case USED_CURRENT:
            *(uint64_t *)value = pool->used;
            return CUDA_SUCCESS;
        case USED_HIGH:
            *(uint64_t *)value = pool->used_high;
            return CUDA_SUCCESS;
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
}

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value) {
    ENTERED();
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS) return result;
    pthread_mutex_lock(&pool_lock);
    result = pool_known(pool) && value != NULL ? get(pool, attribute, value) : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&pool_lock);
    return result;
}

/* ---- which pool a device uses ---- */

static CUresult get_default(CUmemoryPool *pool, CUdevice device) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS) return result;
    if (pool == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&pool_lock);
    *pool = pool_default(device);
    pthread_mutex_unlock(&pool_lock);
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
    pthread_mutex_lock(&pool_lock);
    if (!pool_known(pool) || pool->device != device || pool->host)
        result = CUDA_ERROR_INVALID_VALUE;
    else
        pool_of_device[device] = pool;
    pthread_mutex_unlock(&pool_lock);
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

static CUresult get_hosts(CUmemoryPool *pool) {
    if (pool == NULL) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&pool_lock);
    *pool = pool_default_of_host();
    pthread_mutex_unlock(&pool_lock);
    return *pool != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, const struct location *location, int type) {
    ENTERED();
    CUdevice device;
    CUresult result = device_of(location, type, &device);
    if (result == CUDA_SUCCESS && device < 0) return get_hosts(pool);
    return result == CUDA_SUCCESS ? get_default(pool, device) : result;
}

EXPORT CUresult cuMemGetMemPool(CUmemoryPool *pool, const struct location *location, int type) {
    ENTERED();
    CUdevice device;
    CUresult result = device_of(location, type, &device);
    if (result == CUDA_SUCCESS && device < 0) return get_hosts(pool);
    return result == CUDA_SUCCESS ? get_current(pool, device) : result;
}

EXPORT CUresult cuMemSetMemPool(const struct location *location, int type, CUmemoryPool pool) {
    ENTERED();
    CUdevice device;
    CUresult result = device_of(location, type, &device);
    if (result == CUDA_SUCCESS && device < 0) return CUDA_ERROR_NOT_SUPPORTED;
    return result == CUDA_SUCCESS ? set_current(device, pool) : result;
}

struct access { /* CUmemAccessDesc */
    struct location location;
    int flags;
};

EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool pool, const struct access *accesses, size_t count) {
    ENTERED();
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS) return result;
    pthread_mutex_lock(&pool_lock);
    if (!pool_known(pool) || (accesses == NULL && count > 0)) result = CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++)
        if (accesses[i].location.type == LOCATION_DEVICE && accesses[i].flags != 0 &&
            accesses[i].location.id != pool->device)
            gate_tie();
    pthread_mutex_unlock(&pool_lock);
    return result;
}
