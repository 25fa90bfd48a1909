/* Pinned host memory: none of it is the card's. */
#include "driver.h"

#include <stdlib.h>
#include <sys/mman.h>

struct pinned {
    uintptr_t base;
    uint64_t bytes;
    struct pinned *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pinned *list;

static bool add(void *base, uint64_t bytes) {
    struct pinned *made = malloc(sizeof *made);
    if (made == NULL) return false;
    HOLD(&lock);
    *made = (struct pinned){(uintptr_t)base, bytes, list};
    list = made;
    return true;
}

static bool lookup(uintptr_t address, struct pinned *found) {
    HOLD(&lock);
    const struct pinned *one = list;
    while (one != NULL && address - one->base >= one->bytes) one = one->next;
    if (one != NULL) *found = *one;
    return one != NULL;
}

static bool take_out(uintptr_t base, struct pinned *found) {
    pthread_mutex_lock(&lock);
    struct pinned **link = &list;
    while (*link != NULL && (*link)->base != base) link = &(*link)->next;
    struct pinned *one = *link;
    if (one != NULL) {
        *found = *one;
        *link = one->next;
    }
    pthread_mutex_unlock(&lock);
    free(one);
    return one != NULL;
}

bool host_find(CUdeviceptr address, struct place *place) {
    struct pinned found;
    if (!lookup(address, &found)) return false;
    *place = (struct place){.base = found.base, .bytes = found.bytes};
    return true;
}

static CUresult working(void) {
    struct context *context;
    return context_current(&context);
}

static CUresult allocate(void **address, uint64_t bytes) {
    REQUIRE(working());
    if (address == NULL || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    if (!add(memory, bytes)) {
        munmap(memory, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *address = memory;
    return CUDA_SUCCESS;
}

ENTRY(cuMemAllocHost_v2, (void **address, size_t bytes), allocate(address, bytes));

ENTRY(cuMemHostAlloc, (void **address, size_t bytes, unsigned flags), allocate(address, bytes));

EXPORT CUresult cuMemFreeHost(void *address) {
    ENTERED();
    REQUIRE(working());
    struct pinned found;
    if (!take_out((uintptr_t)address, &found)) return CUDA_ERROR_INVALID_VALUE;
    munmap(address, found.bytes);
    return CUDA_SUCCESS;
}
