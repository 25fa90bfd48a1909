#include "held.h"

#include "charge.h"
#include "pools.h"

/* Gives back what an entry taken out of the ledger stood for, after the driver has freed it. */
static void freed(const struct ledger_entry *entry) {
    if (entry->pooled)
        pool_freed((struct pool *)(uintptr_t)entry->owner, entry->bytes);
    else
        charge_give(entry->slot, entry->bytes);
}

/* The driver gave out an address that we still had: it was freed in a way that we do not see. */
__attribute__((cold, noinline)) static void freed_unseen(const struct ledger_entry *entry) { freed(entry); }

bool held_note(const struct ledger_entry *entry) {
    struct ledger_entry replaced;
    if (!ledger_put(entry, &replaced)) return false;
    if (replaced.kind) freed_unseen(&replaced);
    return true;
}

__attribute__((cold, noinline)) static CUresult not_freed(CUresult result, const struct ledger_entry *entry) {
    held_note(entry);
    return result;
}

CUresult held_end_free(CUresult result, bool known, const struct ledger_entry *entry) {
    if (!known) return result;
    if (result != CUDA_SUCCESS) return not_freed(result, entry);
    freed(entry);
    return CUDA_SUCCESS;
}

struct gone {
    uint64_t context;
    int slot;
    uint64_t bytes;
};

static bool belongs(const struct ledger_entry *entry, void *context) {
    struct gone *gone = context;
    bool of_context = (entry->kind == LEDGER_POINTER && !entry->pooled) || entry->kind == LEDGER_ARRAY;
    if (!of_context || entry->owner != gone->context || entry->slot != gone->slot) return false;
    gone->bytes += entry->bytes;
    return true;
}

void held_context_gone(CUcontext context, int slot) {
    struct gone gone = {.context = (uint64_t)(uintptr_t)context, .slot = slot};
    ledger_sweep(belongs, &gone);
    charge_give(slot, gone.bytes);
}
