/* Pinned host memory: none of it is the card's. And what a pointer is. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct pinned {
    uintptr_t base;
    uint64_t bytes;
    unsigned flags;
    bool registered; /* the program's own memory */
    struct pinned *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pinned *list;

static bool add(void *base, uint64_t bytes, unsigned flags, bool registered) {
    struct pinned *made = malloc(sizeof *made);
    if (made == NULL) return false;
    pthread_mutex_lock(&lock);
    *made = (struct pinned){(uintptr_t)base, bytes, flags, registered, list};
    list = made;
    pthread_mutex_unlock(&lock);
    return true;
}

static bool lookup(uintptr_t address, struct pinned *found) {
    pthread_mutex_lock(&lock);
    const struct pinned *one = list;
    while (one != NULL && address - one->base >= one->bytes) one = one->next;
    if (one != NULL) *found = *one;
    pthread_mutex_unlock(&lock);
    return one != NULL;
}

static bool take_out(uintptr_t base, bool registered, struct pinned *found) {
    pthread_mutex_lock(&lock);
    struct pinned **link = &list;
    while (*link != NULL && ((*link)->base != base || (*link)->registered != registered)) link = &(*link)->next;
    struct pinned *one = *link;
    if (one != NULL) {
        *found = *one;
        *link = one->next;
    }
    pthread_mutex_unlock(&lock);
    free(one);
    return one != NULL;
}

bool host_covers(CUdeviceptr address, uint64_t bytes) {
    struct pinned found;
    return lookup(address, &found) && bytes <= found.base + found.bytes - address;
}

static CUresult working(void) {
    struct context *context;
    return context_current(&context);
}

static CUresult allocate(void **address, uint64_t bytes, unsigned flags) {
    CUresult result = working();
    if (result != CUDA_SUCCESS) return result;
    if (address == NULL || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    if (!add(memory, bytes, flags, false)) {
        munmap(memory, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *address = memory;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAllocHost_v2(void **address, size_t bytes) {
    ENTERED();
    return allocate(address, bytes, 0);
}

EXPORT CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned flags) {
    ENTERED();
    return allocate(address, bytes, flags);
}

EXPORT CUresult cuMemFreeHost(void *address) {
    ENTERED();
    CUresult result = working();
    if (result != CUDA_SUCCESS) return result;
    struct pinned found;
    if (!take_out((uintptr_t)address, false, &found)) return CUDA_ERROR_INVALID_VALUE;
    munmap(address, found.bytes);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags) {
    ENTERED();
    CUresult result = working();
    if (result != CUDA_SUCCESS) return result;
    if (address == NULL || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    return add(address, bytes, flags, true) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuMemHostUnregister(void *address) {
    ENTERED();
    CUresult result = working();
    if (result != CUDA_SUCCESS) return result;
    struct pinned found;
    return take_out((uintptr_t)address, true, &found) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *address, unsigned flags) {
    ENTERED();
    CUresult result = working();
    if (result != CUDA_SUCCESS) return result;
    struct pinned found;
    if (device == NULL || flags != 0 || !lookup((uintptr_t)address, &found)) return CUDA_ERROR_INVALID_VALUE;
    *device = (uintptr_t)address;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostGetFlags(unsigned *flags, void *address) {
    ENTERED();
    CUresult result = working();
    if (result != CUDA_SUCCESS) return result;
    struct pinned found;
    if (flags == NULL || !lookup((uintptr_t)address, &found)) return CUDA_ERROR_INVALID_VALUE;
    *flags = found.flags;
    return CUDA_SUCCESS;
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
    struct pinned host;
    bool on_device = memory_find(address, &place);
    if (!on_device && !lookup(address, &host)) return CUDA_ERROR_INVALID_VALUE;
    if (!on_device) place = (struct place){.base = host.base, .bytes = host.bytes};
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
    ENTERED();
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS) return result;
    return data == NULL ? CUDA_ERROR_INVALID_VALUE : describe(data, attribute, address);
}

EXPORT CUresult cuPointerGetAttributes(unsigned count, const int *attributes, void **data, CUdeviceptr address) {
    ENTERED();
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS) return result;
    if (attributes == NULL || data == NULL) return CUDA_ERROR_INVALID_VALUE;
    /* An unknown pointer is no error here: its attributes are zero, and all begin with at least an int. */
    for (unsigned i = 0; i < count; i++)
        if (describe(data[i], attributes[i], address) != CUDA_SUCCESS) memset(data[i], 0, sizeof(int));
    return CUDA_SUCCESS;
}
