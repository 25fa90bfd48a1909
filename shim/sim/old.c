/* The calls as they were before CUDA 3.2, with 32-bit sizes and addresses. They still take memory, so they are here:
 * a quota that forgot them would leak. Their memory is mapped a second time, below 2 GiB. */
#include "driver.h"

#include <stdlib.h>
#include <sys/mman.h>

struct low {
    unsigned address, bytes;
    unsigned gpu;
    CUdeviceptr memory;
    struct low *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct low *list;

static CUresult take(unsigned *address, unsigned bytes) {
    struct context *context;
    REQUIRE(context_current(&context));
    if (address == NULL || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    struct low *made = calloc(1, sizeof *made);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct low){.bytes = bytes, .gpu = sim_gpu(context->device)};
    int file;
    off_t offset;
    CUresult result = heap_take_hidden(made->gpu, bytes, &made->memory, &file, &offset);
    if (result == CUDA_SUCCESS) {
        void *low = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_32BIT, file, offset);
        if (low != MAP_FAILED) {
            *address = made->address = (unsigned)(uintptr_t)low;
            pthread_mutex_lock(&lock);
            made->next = list;
            list = made;
            pthread_mutex_unlock(&lock);
            return CUDA_SUCCESS;
        }
        heap_give(made->memory);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    free(made);
    return result;
}

ENTRY(cuMemAlloc, (unsigned *address, unsigned bytes), take(address, bytes));

EXPORT CUresult cuMemAllocPitch(unsigned *address, unsigned *pitch, unsigned width, unsigned height, unsigned element) {
    ENTERED();
    if (pitch == NULL || (element != 4 && element != 8 && element != 16)) return CUDA_ERROR_INVALID_VALUE;
    uint64_t row = ((uint64_t)width + 511) / 512 * 512, bytes = row * height;
    if (bytes > UINT32_MAX) return CUDA_ERROR_OUT_OF_MEMORY;
    REQUIRE(take(address, (unsigned)bytes));
    *pitch = (unsigned)row;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFree(unsigned address) {
    ENTERED();
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS || address == 0) return result;
    pthread_mutex_lock(&lock);
    struct low **link = &list;
    while (*link != NULL && (*link)->address != address) link = &(*link)->next;
    struct low *found = *link;
    if (found != NULL) *link = found->next;
    pthread_mutex_unlock(&lock);
    if (found == NULL) return CUDA_ERROR_INVALID_VALUE;
    munmap((void *)(uintptr_t)address, found->bytes);
    heap_give(found->memory);
    free(found);
    return CUDA_SUCCESS;
}

bool old_find(CUdeviceptr address, struct place *place) {
    HOLD(&lock);
    const struct low *low = list;
    while (low != NULL && address - low->address >= low->bytes) low = low->next;
    if (low != NULL)
        *place = (struct place){.gpu = low->gpu, .base = low->address, .bytes = low->bytes, .kind = BLOCK_DEVICE};
    return low != NULL;
}

static unsigned clamp(uint64_t bytes) { return bytes > UINT32_MAX ? UINT32_MAX : (unsigned)bytes; }

EXPORT CUresult cuMemGetInfo(unsigned *free_bytes, unsigned *total) {
    ENTERED_IN(context);
    unsigned gpu = sim_gpu(context->device);
    if (free_bytes != NULL) *free_bytes = clamp(card_free(card_here(gpu)) * CARD_UNIT);
    if (total != NULL) *total = clamp(card_open()->gpu[gpu].units * CARD_UNIT);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device) {
    ENTERED_READY();
    if (bytes == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    *bytes = clamp(card_open()->gpu[sim_gpu(device)].units * CARD_UNIT);
    return CUDA_SUCCESS;
}
