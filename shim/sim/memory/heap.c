/* This process's memory on each GPU.
 *
 * A device address is an address of the host: a window of address space per GPU, backed by a memory file, so that
 * copies and the one kernel are plain memory accesses. The window is several times as large as the card, so that
 * finding a hole in it is easy; what may be taken is decided by the card's unit table alone.
 *
 * As measured on an H200, a block is a multiple of 2 MiB, and requests up to 1 MiB share blocks. */
#include "driver.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WINDOW_FACTOR 4 /* of the card's size */
#define GRANULE 512u
#define SMALL (1ull << 20) /* the biggest request that shares a block */
#define GRANULES (CARD_UNIT / GRANULE)
#define WORDS (GRANULES / 64)

/* A block that small requests share. */
struct shared_block {
    unsigned free;                     /* granules */
    unsigned hint;                     /* word to begin looking at */
    struct shared_block *next, **link; /* among those with room; link is NULL when full */
    struct block *block;
    uint64_t used[WORDS];
    uint32_t bytes[GRANULES]; /* of the request that begins here; 0: none does */
};

struct block {
    uint64_t bytes; /* as asked for; 0 in a shared block */
    uint64_t first; /* window unit */
    enum block_kind kind;
    const void *owner;
    struct units units;
    struct shared_block *shared;
};

struct window {
    char *base;
    uint64_t units;
    uint64_t next;
    int file;
    struct block **at; /* the block of each unit */
    struct shared_block *roomy;
};

static struct window windows[CARD_GPUS];
static unsigned managed; /* blocks */
/* One lock for the process's heap, as the real driver has: it is never held while waiting for anybody. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- units ---- */

CUresult units_take(unsigned gpu, uint64_t count, struct units *units) {
    units->count = count;
    units->taken = malloc(count * sizeof *units->taken);
    if (units->taken != NULL && card_take(gpu, count, units->taken)) return CUDA_SUCCESS;
    free(units->taken);
    units->taken = NULL;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

void units_give(unsigned gpu, struct units *units) {
    card_give(gpu, units->count, units->taken);
    free(units->taken);
    units->taken = NULL;
}

/* ---- the window ---- */

static bool window_open(unsigned gpu) {
    struct window *window = &windows[gpu];
    if (window->base != NULL) return true;
    uint64_t units = card_open()->gpu[gpu].units * WINDOW_FACTOR;
    size_t bytes = units * CARD_UNIT;
    int file = (int)syscall(SYS_memfd_create, "simulated GPU memory", 1u /* MFD_CLOEXEC */);
    if (file < 0) return false;
    /* One unit more, to begin at a whole unit: the tail is never used. */
    char *memory = MAP_FAILED;
    if (ftruncate(file, (off_t)bytes) == 0)
        memory = mmap(NULL, bytes + CARD_UNIT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct block **at = calloc(units, sizeof *at);
    if (memory == MAP_FAILED || at == NULL) goto failed;
    char *base = (char *)(((uintptr_t)memory + CARD_UNIT - 1) / CARD_UNIT * CARD_UNIT);
    if (mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file, 0) == MAP_FAILED)
        goto failed;
    madvise(base, bytes, MADV_DONTFORK);
    *window = (struct window){.base = base, .units = units, .file = file, .at = at};
    return true;
failed:
    if (memory != MAP_FAILED) munmap(memory, bytes + CARD_UNIT);
    free(at);
    close(file);
    return false;
}

/* A hole of `count` units, or window->units. */
static uint64_t window_hole(struct window *window, uint64_t count) {
    for (int pass = 0; pass < 2; pass++, window->next = 0) {
        uint64_t run = 0;
        for (uint64_t unit = window->next; unit < window->units; unit++) {
            run = window->at[unit] == NULL ? run + 1 : 0;
            if (run == count) return unit + 1 - count;
        }
    }
    return window->units;
}

static struct window *window_of(CUdeviceptr address, unsigned *gpu) {
    for (unsigned i = 0; i < CARD_GPUS; i++) {
        const struct window *window = &windows[i];
        if (window->base == NULL) continue;
        uint64_t offset = address - (uintptr_t)window->base;
        if (offset >= window->units * CARD_UNIT) continue;
        *gpu = i;
        return &windows[i];
    }
    return NULL;
}

static struct block *block_at(const struct window *window, CUdeviceptr address) {
    return window->at[(address - (uintptr_t)window->base) / CARD_UNIT];
}

static CUdeviceptr block_address(const struct window *window, const struct block *block) {
    return (uintptr_t)window->base + block->first * CARD_UNIT;
}

/* ---- blocks ---- */

static CUresult block_take(unsigned gpu, const void *owner, enum block_kind kind, uint64_t count, struct block **made) {
    struct block *block = calloc(1, sizeof *block);
    if (block == NULL || !window_open(gpu)) goto failed;
    struct window *window = &windows[gpu];
    block->first = window_hole(window, count);
    if (block->first == window->units || units_take(gpu, count, &block->units) != CUDA_SUCCESS) goto failed;
    for (uint64_t i = 0; i < count; i++) window->at[block->first + i] = block;
    window->next = block->first + count;
    managed += kind == BLOCK_MANAGED;
    block->kind = kind;
    block->owner = owner;
    *made = block;
    return CUDA_SUCCESS;
failed:
    free(block);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static void block_give(unsigned gpu, struct block *block) {
    struct window *window = &windows[gpu];
    uint64_t count = block->units.count;
    memset(&window->at[block->first], 0, count * sizeof *window->at);
    /* The host's memory goes back too, else a long test would fill it. */
    fallocate(window->file, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, (off_t)(block->first * CARD_UNIT),
              (off_t)(count * CARD_UNIT));
    units_give(gpu, &block->units);
    managed -= block->kind == BLOCK_MANAGED;
    free(block->shared);
    free(block);
}

/* ---- small requests ---- */

static void roomy_add(struct window *window, struct shared_block *shared) {
    shared->next = window->roomy;
    shared->link = &window->roomy;
    if (shared->next != NULL) shared->next->link = &shared->next;
    window->roomy = shared;
}

static void roomy_remove(struct shared_block *shared) {
    if (shared->link == NULL) return;
    *shared->link = shared->next;
    if (shared->next != NULL) shared->next->link = shared->link;
    shared->link = NULL;
}

static void mark(struct shared_block *shared, unsigned first, unsigned count, bool used) {
    while (count > 0) {
        unsigned from = first % 64, here = count < 64 - from ? count : 64 - from;
        uint64_t bits = (here == 64 ? UINT64_MAX : (1ull << here) - 1) << from;
        if (used)
            shared->used[first / 64] |= bits;
        else
            shared->used[first / 64] &= ~bits;
        first += here;
        count -= here;
    }
}

/* The first of `count` free granules in a row, or GRANULES. */
static unsigned shared_run(const struct shared_block *shared, unsigned count) {
    unsigned run = 0;
    for (unsigned granule = shared->hint * 64; granule < GRANULES; granule++) {
        uint64_t word = shared->used[granule / 64];
        if (granule % 64 == 0 && (word == UINT64_MAX || (word == 0 && run + 64 < count))) {
            run = word == 0 ? run + 64 : 0;
            granule += 63;
            continue;
        }
        run = word >> (granule % 64) & 1 ? 0 : run + 1;
        if (run == count) return granule + 1 - count;
    }
    return GRANULES;
}

static struct shared_block *shared_new(unsigned gpu, const void *owner, enum block_kind kind) {
    struct shared_block *shared = calloc(1, sizeof *shared);
    if (shared == NULL || block_take(gpu, owner, kind, 1, &shared->block) != CUDA_SUCCESS) {
        free(shared);
        return NULL;
    }
    shared->block->shared = shared;
    shared->free = GRANULES;
    roomy_add(&windows[gpu], shared);
    return shared;
}

static CUresult small_take(unsigned gpu, const void *owner, uint64_t bytes, enum block_kind kind,
                           CUdeviceptr *address) {
    unsigned count = (unsigned)((bytes + GRANULE - 1) / GRANULE), first = GRANULES;
    struct shared_block *shared = windows[gpu].roomy;
    for (; shared != NULL; shared = shared->next) {
        const struct block *block = shared->block;
        if (block->owner != owner || block->kind != kind || shared->free < count) continue;
        first = shared_run(shared, count);
        if (first < GRANULES) break;
    }
    if (shared == NULL) {
        shared = shared_new(gpu, owner, kind);
        if (shared == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
        first = 0;
    }
    mark(shared, first, count, true);
    shared->bytes[first] = (uint32_t)bytes;
    shared->free -= count;
    /* The hint may pass no free granule: it moves only over words that are full. */
    while (shared->hint < WORDS - 1 && shared->used[shared->hint] == UINT64_MAX) shared->hint++;
    if (shared->free == 0) roomy_remove(shared);
    *address = block_address(&windows[gpu], shared->block) + (uint64_t)first * GRANULE;
    return CUDA_SUCCESS;
}

static CUresult small_give(unsigned gpu, struct shared_block *shared, uint64_t offset) {
    unsigned first = (unsigned)(offset / GRANULE);
    if (offset % GRANULE != 0 || shared->bytes[first] == 0) return CUDA_ERROR_INVALID_VALUE;
    unsigned count = (shared->bytes[first] + GRANULE - 1) / GRANULE;
    mark(shared, first, count, false);
    shared->bytes[first] = 0;
    shared->free += count;
    if (first / 64 < shared->hint) shared->hint = first / 64;
    if (shared->link == NULL) roomy_add(&windows[gpu], shared);
    if (shared->free == GRANULES) {
        roomy_remove(shared);
        block_give(gpu, shared->block);
    }
    return CUDA_SUCCESS;
}

/* ---- the heap ---- */

CUresult heap_take(unsigned gpu, const void *owner, uint64_t bytes, enum block_kind kind, CUdeviceptr *address) {
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > card_open()->gpu[gpu].units * CARD_UNIT) return CUDA_ERROR_OUT_OF_MEMORY;
    HOLD(&lock);
    if (bytes <= SMALL) return small_take(gpu, owner, bytes, kind, address);
    struct block *block;
    REQUIRE(block_take(gpu, owner, kind, (bytes + CARD_UNIT - 1) / CARD_UNIT, &block));
    block->bytes = bytes;
    *address = block_address(&windows[gpu], block);
    return CUDA_SUCCESS;
}

CUresult heap_take_hidden(unsigned gpu, uint64_t bytes, CUdeviceptr *address, int *file, off_t *offset) {
    /* Rounded up, so that it is a block of its own. */
    REQUIRE(heap_take(gpu, NULL, bytes < CARD_UNIT ? CARD_UNIT : bytes, BLOCK_HIDDEN, address));
    *file = windows[gpu].file;
    *offset = (off_t)(*address - (uintptr_t)windows[gpu].base);
    return CUDA_SUCCESS;
}

CUresult heap_give(CUdeviceptr address) {
    HOLD(&lock);
    unsigned gpu;
    struct window *window = window_of(address, &gpu);
    struct block *block = window == NULL ? NULL : block_at(window, address);
    if (block == NULL) return CUDA_ERROR_INVALID_VALUE;
    uint64_t offset = address - block_address(window, block);
    if (block->shared != NULL) return small_give(gpu, block->shared, offset);
    if (offset != 0) return CUDA_ERROR_INVALID_VALUE;
    block_give(gpu, block);
    return CUDA_SUCCESS;
}

static bool find_small(const struct shared_block *shared, struct place *place, uint64_t offset) {
    for (int first = (int)(offset / GRANULE); first >= 0; first--) {
        if (shared->bytes[first] == 0) continue;
        place->base += (uint64_t)first * GRANULE;
        place->bytes = shared->bytes[first];
        return offset < (uint64_t)first * GRANULE + place->bytes;
    }
    return false;
}

static bool find(CUdeviceptr address, struct place *place) {
    const struct window *window = window_of(address, &place->gpu);
    const struct block *block = window == NULL ? NULL : block_at(window, address);
    if (block == NULL) return false;
    place->kind = block->kind;
    place->owner = block->owner;
    place->base = block_address(window, block);
    place->bytes = block->bytes;
    uint64_t offset = address - place->base;
    return block->shared != NULL ? find_small(block->shared, place, offset) : offset < block->bytes;
}

bool heap_find(CUdeviceptr address, struct place *place) {
    HOLD(&lock);
    return find(address, place);
}

bool heap_has_managed(void) {
    HOLD(&lock);
    return managed > 0;
}

int heap_open(unsigned gpu) {
    HOLD(&lock);
    return window_open(gpu) ? windows[gpu].file : -1;
}

int heap_file(CUdeviceptr address, off_t *offset) {
    unsigned gpu;
    HOLD(&lock);
    const struct window *window = window_of(address, &gpu);
    if (window != NULL) *offset = (off_t)(address - (uintptr_t)window->base);
    return window != NULL ? window->file : -1;
}

bool heap_is_ours(CUdeviceptr address) {
    unsigned gpu;
    HOLD(&lock);
    return window_of(address, &gpu) != NULL;
}

void heap_drop(unsigned gpu, const void *owner) {
    HOLD(&lock);
    struct window *window = &windows[gpu];
    for (uint64_t unit = 0; window->base != NULL && unit < window->units; unit++) {
        struct block *block = window->at[unit];
        if (block == NULL || block->owner != owner) continue;
        if (block->shared != NULL) roomy_remove(block->shared);
        block_give(gpu, block);
    }
}
