/* Virtual memory management: address ranges, and what is mapped where. */
#include "physical.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct access {
    struct location location;
    int flags;
};
enum { ACCESS_NONE = 0, ACCESS_READ = 1, ACCESS_READ_WRITE = 3 };

struct mapping {
    CUdeviceptr base;
    uint64_t bytes;
    struct physical *physical;
    int access;
};

struct reservation {
    CUdeviceptr base;
    uint64_t bytes;
    struct reservation *next;
};

static struct reservation *reservations;
static struct mapping *mappings; /* by address */
static size_t mapped, room;

/* ---- addresses ---- */

CUresult vmm_reserve(uint64_t bytes, CUdeviceptr *address) {
    struct reservation *reservation = malloc(sizeof *reservation);
    char *memory = mmap(NULL, bytes + CARD_UNIT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reservation == NULL || memory == MAP_FAILED) {
        if (memory != MAP_FAILED) munmap(memory, bytes + CARD_UNIT);
        free(reservation);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    /* Keep the part that begins at a whole unit. */
    uintptr_t base = ((uintptr_t)memory + CARD_UNIT - 1) / CARD_UNIT * CARD_UNIT;
    size_t before = base - (uintptr_t)memory;
    if (before > 0) munmap(memory, before);
    if (before < CARD_UNIT) munmap((void *)(base + bytes), CARD_UNIT - before);
    madvise((void *)base, bytes, MADV_DONTFORK);
    pthread_mutex_lock(&physical_lock);
    *reservation = (struct reservation){.base = base, .bytes = bytes, .next = reservations};
    reservations = reservation;
    pthread_mutex_unlock(&physical_lock);
    *address = base;
    return CUDA_SUCCESS;
}

/* The index of the first mapping that ends after `address`. */
static size_t first_after(CUdeviceptr address) {
    size_t low = 0, high = mapped;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (mappings[middle].base + mappings[middle].bytes > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static bool anything_mapped(CUdeviceptr address, uint64_t bytes) {
    size_t i = first_after(address);
    return i < mapped && mappings[i].base < address + bytes;
}

static bool within_reservation(CUdeviceptr address, uint64_t bytes) {
    for (const struct reservation *one = reservations; one != NULL; one = one->next)
        if (address >= one->base && bytes <= one->bytes && address - one->base <= one->bytes - bytes) return true;
    return false;
}

static bool unreserve(CUdeviceptr address, uint64_t bytes) {
    for (struct reservation **link = &reservations; *link != NULL; link = &(*link)->next) {
        struct reservation *one = *link;
        if (one->base != address || one->bytes != bytes) continue;
        if (anything_mapped(address, bytes)) return false;
        *link = one->next;
        munmap((void *)(uintptr_t)address, bytes);
        free(one);
        return true;
    }
    return false;
}

void vmm_unreserve(CUdeviceptr address, uint64_t bytes) {
    HOLD(&physical_lock);
    unreserve(address, bytes);
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr wish,
                                    unsigned long long flags) {
    ENTERED_READY();
    if (address == NULL || bytes == 0 || bytes % CARD_UNIT != 0 || flags != 0 || (alignment & (alignment - 1)) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (alignment > CARD_UNIT) return CUDA_ERROR_NOT_SUPPORTED;
    if (bytes > 1ull << 46) return CUDA_ERROR_OUT_OF_MEMORY;
    return vmm_reserve(bytes, address);
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
    ENTERED_READY();
    HOLD(&physical_lock);
    return unreserve(address, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- mappings ---- */

static bool insert(struct mapping mapping) {
    if (mapped == room) {
        size_t more = room ? room * 2 : 64;
        struct mapping *grown = realloc(mappings, more * sizeof *grown);
        if (grown == NULL) return false;
        mappings = grown;
        room = more;
    }
    size_t i = first_after(mapping.base);
    memmove(&mappings[i + 1], &mappings[i], (mapped - i) * sizeof *mappings);
    mappings[i] = mapping;
    mapped++;
    mapping.physical->mappings++;
    return true;
}

static CUresult map(struct mapping mapping) {
    void *at = (void *)(uintptr_t)mapping.base;
    int protection = mapping.access == ACCESS_NONE ? PROT_NONE : PROT_READ | PROT_WRITE;
    if (mmap(at, mapping.bytes, protection, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, mapping.physical->file,
             mapping.physical->offset) == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    madvise(at, mapping.bytes, MADV_DONTFORK);
    return insert(mapping) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void unmap_at(size_t i) {
    struct mapping mapping = mappings[i];
    memmove(&mappings[i], &mappings[i + 1], (mapped - i - 1) * sizeof *mappings);
    mapped--;
    /* The range stays reserved. */
    mmap((void *)(uintptr_t)mapping.base, mapping.bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    mapping.physical->mappings--;
    physical_end(mapping.physical);
}

EXPORT CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemHandle handle,
                         unsigned long long flags) {
    ENTERED_READY();
    HOLD(&physical_lock);
    struct physical *physical = handle_get(handle);
    if (physical == NULL || bytes == 0 || bytes % CARD_UNIT != 0 || address % CARD_UNIT != 0 || offset != 0 ||
        flags != 0 || bytes > physical->bytes || !within_reservation(address, bytes) || anything_mapped(address, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    return map((struct mapping){.base = address, .bytes = bytes, .physical = physical});
}

/* Are the bytes mappings, all of them whole, and nothing else? They are those from `first` to before `last`. */
static bool whole_mappings(CUdeviceptr address, uint64_t bytes, size_t *first, size_t *last) {
    CUdeviceptr end = address;
    *first = *last = first_after(address);
    while (*last < mapped && mappings[*last].base == end && end < address + bytes) end += mappings[(*last)++].bytes;
    return bytes > 0 && end == address + bytes;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    ENTERED_READY();
    HOLD(&physical_lock);
    size_t first, last;
    if (!whole_mappings(address, bytes, &first, &last)) return CUDA_ERROR_INVALID_VALUE;
    while (last > first) unmap_at(--last);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const struct access *accesses, size_t count) {
    ENTERED_READY();
    if (accesses == NULL || count == 0) return CUDA_ERROR_INVALID_VALUE;
    int access = ACCESS_NONE;
    for (size_t i = 0; i < count; i++) {
        if (accesses[i].location.type == LOCATION_DEVICE && !sim_valid(accesses[i].location.id))
            return CUDA_ERROR_INVALID_DEVICE;
        if (accesses[i].flags > access) access = accesses[i].flags;
    }
    HOLD(&physical_lock);
    size_t first, last;
    if (!whole_mappings(address, bytes, &first, &last)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = first; i < last; i++) {
        mappings[i].access = access;
        for (size_t j = 0; j < count; j++)
            if (accesses[j].location.type == LOCATION_DEVICE && accesses[j].flags != ACCESS_NONE &&
                sim_gpu(accesses[j].location.id) != mappings[i].physical->gpu)
                gate_tie();
    }
    /* The host may not care about reading only: the driver checks the rest. */
    int protection = access == ACCESS_NONE ? PROT_NONE : PROT_READ | PROT_WRITE;
    mprotect((void *)(uintptr_t)address, bytes, protection);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemHandle *handle, void *address) {
    ENTERED_READY();
    HOLD(&physical_lock);
    size_t i = first_after((uintptr_t)address);
    if (handle == NULL || i == mapped || mappings[i].base > (uintptr_t)address) return CUDA_ERROR_INVALID_VALUE;
    *handle = handle_new(mappings[i].physical);
    return *handle != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* ---- whole files ---- */

CUresult vmm_map_file(int file, off_t offset, uint64_t bytes, unsigned gpu, CUdeviceptr *address) {
    bytes = (bytes + CARD_UNIT - 1) / CARD_UNIT * CARD_UNIT;
    struct physical *physical = physical_import(file, offset, bytes, gpu);
    if (physical == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    physical->whole = true;
    REQUIRE(vmm_reserve(bytes, address));
    HOLD(&physical_lock);
    return map((struct mapping){.base = *address, .bytes = bytes, .physical = physical, .access = ACCESS_READ_WRITE});
}

bool vmm_unmap_file(CUdeviceptr address) {
    HOLD(&physical_lock);
    size_t i = first_after(address);
    if (i == mapped || mappings[i].base != address || !mappings[i].physical->whole) return false;
    uint64_t bytes = mappings[i].bytes;
    unmap_at(i);
    unreserve(address, bytes);
    return true;
}

/* ---- what the rest of the driver asks ---- */

bool vmm_find(CUdeviceptr address, struct place *place) {
    HOLD(&physical_lock);
    size_t i = first_after(address);
    if (i == mapped || mappings[i].base > address) return false;
    *place = (struct place){
        .gpu = mappings[i].physical->gpu, .base = mappings[i].base, .bytes = mappings[i].bytes, .kind = BLOCK_DEVICE};
    return true;
}

bool vmm_covers(CUdeviceptr address, uint64_t bytes) {
    CUdeviceptr end = address + bytes;
    HOLD(&physical_lock);
    for (size_t i = first_after(address); address < end; i++) {
        if (i == mapped || mappings[i].base > address || mappings[i].access == ACCESS_NONE) break;
        address = mappings[i].base + mappings[i].bytes;
    }
    return address >= end;
}
