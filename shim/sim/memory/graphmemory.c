/* Memory that is allocated by running a graph. Its address is fixed when the node is made; physical memory comes when
 * the graph first runs (or is uploaded), and after the free it stays with the device, for the next graph that needs
 * that much, until cuDeviceGraphMemTrim. */
#include "driver.h"

#include <stdlib.h>
#include <sys/mman.h>

struct backing {
    uint64_t bytes;
    CUdeviceptr hidden;
    int file;
    off_t offset;
    struct backing *next;
};

struct graph_memory {
    CUdevice device;
    unsigned holders; /* graphs and executable graphs */
    CUdeviceptr base;
    uint64_t asked, bytes;
    struct backing *backing; /* while allocated */
    struct graph_memory *next;
};

enum { USED_CURRENT = 0, USED_HIGH = 1, RESERVED_CURRENT = 2, RESERVED_HIGH = 3, ATTRIBUTES = 4 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct graph_memory *memories;
static struct backing *spare[CARD_GPUS];
static uint64_t figures[CARD_GPUS][ATTRIBUTES];

static void count(CUdevice device, int current, int64_t change) {
    uint64_t *figure = figures[device];
    figure[current] += (uint64_t)change;
    if (figure[current] > figure[current + 1]) figure[current + 1] = figure[current];
}

/* ---- physical memory ---- */

static struct backing *backing_get(CUdevice device, uint64_t bytes) {
    for (struct backing **link = &spare[device]; *link != NULL; link = &(*link)->next) {
        struct backing *found = *link;
        if (found->bytes != bytes) continue;
        *link = found->next;
        return found;
    }
    struct backing *made = calloc(1, sizeof *made);
    if (made == NULL || !card_join()) return NULL;
    made->bytes = bytes;
    if (heap_take_hidden(sim_gpu(device), bytes, &made->hidden, &made->file, &made->offset) != CUDA_SUCCESS) {
        free(made);
        return NULL;
    }
    count(device, RESERVED_CURRENT, (int64_t)bytes);
    return made;
}

static void backing_keep(CUdevice device, struct backing *backing) {
    backing->next = spare[device];
    spare[device] = backing;
}

static void release_spare(CUdevice device) {
    while (spare[device] != NULL) {
        struct backing *backing = spare[device];
        spare[device] = backing->next;
        heap_give(backing->hidden);
        count(device, RESERVED_CURRENT, -(int64_t)backing->bytes);
        free(backing);
    }
}

/* ---- one node's memory ---- */

struct graph_memory *graph_memory_new(CUdevice device, uint64_t bytes) {
    if (bytes > card_open()->gpu[sim_gpu(device)].units * CARD_UNIT) return NULL;
    struct graph_memory *memory = calloc(1, sizeof *memory);
    if (memory == NULL) return NULL;
    memory->device = device;
    memory->holders = 1;
    memory->asked = bytes;
    memory->bytes = (bytes + CARD_UNIT - 1) / CARD_UNIT * CARD_UNIT;
    if (vmm_reserve(memory->bytes, &memory->base) != CUDA_SUCCESS) {
        free(memory);
        return NULL;
    }
    HOLD(&lock);
    memory->next = memories;
    memories = memory;
    return memory;
}

static void end_unless_needed(struct graph_memory *memory) {
    if (memory->holders > 0 || memory->backing != NULL) return;
    for (struct graph_memory **link = &memories; *link != NULL; link = &(*link)->next) {
        if (*link != memory) continue;
        *link = memory->next;
        break;
    }
    vmm_unreserve(memory->base, memory->bytes);
    free(memory);
}

void graph_memory_hold(struct graph_memory *memory) {
    HOLD(&lock);
    memory->holders++;
}

void graph_memory_drop(struct graph_memory *memory) {
    HOLD(&lock);
    memory->holders--;
    end_unless_needed(memory);
}

CUdeviceptr graph_memory_address(const struct graph_memory *memory) { return memory->base; }
CUdevice graph_memory_device(const struct graph_memory *memory) { return memory->device; }

static void unback(struct graph_memory *memory) {
    struct backing *backing = memory->backing;
    memory->backing = NULL;
    mmap((void *)(uintptr_t)memory->base, memory->bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    backing_keep(memory->device, backing);
    count(memory->device, USED_CURRENT, -(int64_t)memory->bytes);
}

CUresult graph_memory_prepare(struct graph_memory *memory) {
    HOLD(&lock);
    struct backing *backing = memory->backing == NULL ? backing_get(memory->device, memory->bytes) : NULL;
    if (backing != NULL) backing_keep(memory->device, backing);
    return backing != NULL || memory->backing != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult graph_memory_take(struct graph_memory *memory, bool again) {
    HOLD(&lock);
    if (memory->backing != NULL && again) unback(memory);
    if (memory->backing != NULL) return CUDA_ERROR_INVALID_VALUE; /* run twice without a free */
    memory->backing = backing_get(memory->device, memory->bytes);
    if (memory->backing == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    void *at = (void *)(uintptr_t)memory->base;
    mmap(at, memory->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, memory->backing->file,
         memory->backing->offset);
    madvise(at, memory->bytes, MADV_DONTFORK);
    count(memory->device, USED_CURRENT, (int64_t)memory->bytes);
    return CUDA_SUCCESS;
}

static struct graph_memory *lookup(CUdeviceptr address) {
    struct graph_memory *memory = memories;
    while (memory != NULL && address - memory->base >= memory->bytes) memory = memory->next;
    return memory != NULL && memory->backing != NULL ? memory : NULL;
}

CUresult graph_memory_free(CUdeviceptr address) {
    HOLD(&lock);
    struct graph_memory *memory = lookup(address);
    if (memory == NULL || memory->base != address) return CUDA_ERROR_INVALID_VALUE;
    unback(memory);
    end_unless_needed(memory);
    return CUDA_SUCCESS;
}

bool graph_memory_find(CUdeviceptr address, struct place *place) {
    HOLD(&lock);
    const struct graph_memory *memory = lookup(address);
    if (memory != NULL)
        *place = (struct place){
            .gpu = sim_gpu(memory->device), .base = memory->base, .bytes = memory->asked, .kind = BLOCK_POOL};
    return memory != NULL;
}

void graph_memory_forget(CUdevice device) {
    HOLD(&lock);
    for (struct graph_memory *memory = memories, *next; memory != NULL; memory = next) {
        next = memory->next;
        if (memory->device != device || memory->backing == NULL) continue;
        unback(memory);
        end_unless_needed(memory);
    }
    release_spare(device);
}

/* ---- the calls ---- */

static CUresult check(CUdevice device) {
    REQUIRE(sim_ready());
    return sim_valid(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device) {
    ENTERED();
    REQUIRE(check(device));
    HOLD(&lock);
    release_spare(device);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *value) {
    ENTERED();
    REQUIRE(check(device));
    if (value == NULL || attribute < 0 || attribute >= ATTRIBUTES) return CUDA_ERROR_INVALID_VALUE;
    HOLD(&lock);
    *(uint64_t *)value = figures[device][attribute];
    return CUDA_SUCCESS;
}
