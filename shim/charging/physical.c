#include "physical.h"

#include "charge.h"
#include "fork.h"
#include "lock.h"

#include <stddef.h>
#include <stdlib.h>

/* Holds a handle's entry and its count together; never held across a call. */
static struct lock counting;

static void physical_forget(void) { atomic_store(&counting.word, 0); }
FORGET_IN_CHILD(physical_forget);

static void refer(struct physical *physical) { atomic_fetch_add(&physical->references, 1); }

void physical_drop(struct physical *physical) {
    if (atomic_fetch_sub(&physical->references, 1) != 1) return;
    charge_give(physical->slot, physical->bytes);
    free(physical);
}

bool physical_add_handle(CUmemGenericAllocationHandle handle, struct physical *physical) {
    struct ledger_entry before = {.bytes = 0}, replaced;
    lock_take(&counting);
    bool taken = ledger_take(LEDGER_HANDLE, handle, &before);
    bool again = taken && physical_of(&before) == physical;
    bool noted = ledger_put(&(struct ledger_entry){.kind = LEDGER_HANDLE,
                                                   .key = handle,
                                                   .bytes = again ? before.bytes + 1 : 1,
                                                   .slot = (uint8_t)physical->slot,
                                                   .owner = (uint64_t)(uintptr_t)physical},
                            &replaced);
    lock_drop(&counting);
    while (taken && !again && before.bytes--) physical_drop(physical_of(&before));
    return noted;
}

struct physical *physical_remove_handle(CUmemGenericAllocationHandle handle) {
    struct ledger_entry entry, replaced;
    struct physical *physical = NULL;
    lock_take(&counting);
    if (ledger_take(LEDGER_HANDLE, handle, &entry)) {
        physical = physical_of(&entry);
        if (--entry.bytes) ledger_put(&entry, &replaced);
    }
    lock_drop(&counting);
    return physical;
}

struct physical *physical_look_up(CUmemGenericAllocationHandle handle) {
    struct ledger_entry entry;
    struct physical *physical = NULL;
    lock_take(&counting);
    if (ledger_get(LEDGER_HANDLE, handle, &entry)) refer(physical = physical_of(&entry));
    lock_drop(&counting);
    return physical;
}

struct search {
    CUdeviceptr address;
    struct physical *found;
};

static bool contains(const struct ledger_entry *entry, void *context) {
    struct search *search = context;
    if (!search->found && entry->kind == LEDGER_MAPPING && search->address - entry->key < entry->bytes)
        refer(search->found = physical_of(entry));
    return false;
}

struct physical *physical_mapped_at(CUdeviceptr address) {
    struct search search = {.address = address};
    ledger_sweep(contains, &search);
    return search.found;
}

static bool take_tile(const struct ledger_entry *entry, void *context) {
    struct tiles *tiles = context;
    if (entry->kind != LEDGER_TILE || entry->bytes != (uint64_t)(uintptr_t)tiles->array) return false;
    if (tiles->count == tiles->room) {
        size_t room = tiles->room ? tiles->room * 2 : 16;
        struct ledger_entry *more = realloc(tiles->entries, room * sizeof *more);
        if (!more) return false; /* it stays charged: too much rather than too little */
        tiles->entries = more;
        tiles->room = room;
    }
    tiles->entries[tiles->count++] = *entry;
    return true;
}

void physical_take_tiles(struct tiles *tiles) { ledger_sweep(take_tile, tiles); }

void physical_end_tiles(struct tiles *tiles, bool destroyed) {
    while (tiles->count--) {
        struct ledger_entry replaced;
        if (destroyed)
            physical_drop(physical_of(&tiles->entries[tiles->count]));
        else
            ledger_put(&tiles->entries[tiles->count], &replaced);
    }
    free(tiles->entries);
}
