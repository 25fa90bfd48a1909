/* What the program holds, from the driver's yes to the driver's free: entries of the ledger, with their charges. */
#ifndef GPUSHARE_HELD_H
#define GPUSHARE_HELD_H

#include "charge.h"
#include "cuda_abi.h"
#include "ledger.h"
#include "pools.h"

/* Notes what is held. False: no host memory for that; the caller gives the allocation back. */
bool held_note(const struct ledger_entry *entry);

/* The driver has refused to free it: notes it again. Returns `result`. */
__attribute__((cold, noinline)) CUresult held_still(CUresult result, const struct ledger_entry *entry);

/* Gives back what an entry taken out of the ledger stood for, after the driver has freed it on a stream (NULL: for
 * all). */
static inline void held_freed(const struct ledger_entry *entry, CUstream stream) {
    if (entry->pooled)
        pool_freed((struct pool *)(uintptr_t)entry->owner, entry->bytes, stream);
    else
        charge_give(entry->slot, entry->bytes);
}

/* Ends a free: gives back what the entry stood for, or notes the entry again if the driver has refused. `known`: it was
 * in the ledger. What was not (imported, mapped from outside, freed already) is between the program and the driver.
 * Here, because a call of it would cost a tenth of all that a free does. Returns `result`. */
static inline CUresult held_end_free(CUresult result, bool known, const struct ledger_entry *entry, CUstream stream) {
    if (!known) return result;
    if (result != CUDA_SUCCESS) return held_still(result, entry);
    held_freed(entry, stream);
    return CUDA_SUCCESS;
}

/* Drops everything on a slot's GPU that belonged to a context which is gone (the owner of struct place). */
void held_context_gone(uint64_t owner, int slot);

#endif
