/* Physical memory of cuMemCreate: charged until it is neither referred to by a handle nor mapped anywhere. */
#ifndef GPUSHARE_PHYSICAL_H
#define GPUSHARE_PHYSICAL_H

#include "cuda_abi.h"
#include "ledger.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

struct physical {
    int slot;
    uint64_t bytes;
    _Atomic uint64_t references; /* handles and mappings */
};

/* What an entry of a handle, a mapping or a tile stands for. */
static inline struct physical *physical_of(const struct ledger_entry *entry) {
    return (struct physical *)(uintptr_t)entry->owner;
}

/* One reference less; the last one gives the charge back. */
void physical_drop(struct physical *physical);

/* One more handle of this value. What it stood for until now, if it was something else, was released in a way that we
 * do not see. False: no host memory. */
bool physical_add_handle(CUmemGenericAllocationHandle handle, struct physical *physical);

/* One handle less; its memory, still referred to for the caller, or NULL if it is not ours. */
struct physical *physical_remove_handle(CUmemGenericAllocationHandle handle);

/* The memory behind a handle, referred to once more, or NULL if it is not ours. */
struct physical *physical_look_up(CUmemGenericAllocationHandle handle);

/* The same for what is mapped at an address. */
struct physical *physical_mapped_at(CUdeviceptr address);

/* What is mapped into an array that is about to be destroyed. Its notes are taken out before the driver is asked, since
 * another array may have its address after that. */
struct tiles {
    const void *array;
    struct ledger_entry *entries;
    size_t count, room;
};
void physical_take_tiles(struct tiles *tiles);

/* After that: nothing is mapped into it any more; or the driver has refused, and they are noted again. */
void physical_end_tiles(struct tiles *tiles, bool destroyed);

#endif
