#include "held.h"

/* The driver gave out an address that we still had: it was freed in a way that we do not see. */
__attribute__((cold, noinline)) static void freed_unseen(const struct ledger_entry *entry) { held_freed(entry, NULL); }

bool held_note(const struct ledger_entry *entry) {
    struct ledger_entry replaced;
    if (!ledger_put(entry, &replaced)) return false;
    if (replaced.kind) freed_unseen(&replaced);
    return true;
}

CUresult held_still(CUresult result, const struct ledger_entry *entry) {
    held_note(entry);
    return result;
}

struct gone {
    uint64_t owner;
    int slot;
    uint64_t bytes;
};

static bool belongs(const struct ledger_entry *entry, void *context) {
    struct gone *gone = context;
    bool of_context = (entry->kind == LEDGER_POINTER && !entry->pooled) || entry->kind == LEDGER_ARRAY;
    if (!of_context || entry->owner != gone->owner || entry->slot != gone->slot) return false;
    gone->bytes += entry->bytes;
    return true;
}

void held_context_gone(uint64_t owner, int slot) {
    struct gone gone = {.owner = owner, .slot = slot};
    ledger_sweep(belongs, &gone);
    charge_give(slot, gone.bytes);
}
