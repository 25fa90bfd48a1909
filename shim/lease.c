#include "lease.h"

#include <stddef.h>

_Static_assert(sizeof(struct lease_slot) == 128, "a slot is two cache lines");
_Static_assert(sizeof(struct lease_page) <= LEASE_PAGE_SIZE, "the page is one page");
_Static_assert(offsetof(struct lease_page, slot) == 128, "slots begin on a cache line");

/* The scheduler has taken back what this thread was about to have. */
__attribute__((cold, noinline)) static bool undo(struct lease_slot *slot, uint64_t bytes) {
    atomic_fetch_sub(&slot->taken, bytes);
    return false;
}

bool lease_reserve(struct lease_slot *slot, uint64_t bytes) {
    uint64_t after, taken = atomic_load(&slot->taken);
    do {
        if (__builtin_add_overflow(taken, bytes, &after) || after > atomic_load(&slot->limit)) return false;
    } while (!atomic_compare_exchange_weak(&slot->taken, &taken, after));
    return after <= atomic_load(&slot->limit) || undo(slot, bytes);
}

/* Display only: the scheduler looks once a second and would miss what is taken and freed in between. */
__attribute__((cold, noinline)) static void note_peak(struct lease_slot *slot, uint64_t noted) {
    uint64_t peak = atomic_load_explicit(&slot->peak, memory_order_relaxed);
    while (
        ((noted ^ peak) >> LEASE_LOOK_BIT || noted > peak) &&
        !atomic_compare_exchange_weak_explicit(&slot->peak, &peak, noted, memory_order_relaxed, memory_order_relaxed));
}

bool lease_release(struct lease_slot *slot, uint64_t bytes) {
    uint64_t noted = atomic_fetch_sub(&slot->taken, bytes) +
                     ((uint64_t)atomic_load_explicit(&slot->look, memory_order_relaxed) << LEASE_LOOK_BIT);
    uint64_t peak = atomic_load_explicit(&slot->peak, memory_order_relaxed);
    if ((noted ^ peak) >> LEASE_LOOK_BIT || noted > peak) note_peak(slot, noted);
    return atomic_load(&slot->pressure) != 0;
}

void lease_accept(struct lease_slot *slot, uint64_t bytes) { atomic_fetch_add(&slot->accepted, bytes); }

uint64_t lease_used(const struct lease_slot *slot) {
    uint64_t used = atomic_load(&slot->taken) - LEASE_ZERO + atomic_load(&slot->granted) + atomic_load(&slot->measured);
    return used > INT64_MAX ? 0 : used;
}

uint64_t lease_claim(const struct lease_slot *slot) {
    uint64_t quota = atomic_load(&slot->quota);
    uint64_t used = lease_used(slot);
    uint64_t elsewhere = atomic_load(&slot->elsewhere);
    if (used >= quota || elsewhere >= quota - used) return 0;
    return quota - used - elsewhere;
}

bool lease_page_init(struct lease_page *page, unsigned slots) {
    if (slots > LEASE_SLOTS) return false;
    page->magic = LEASE_MAGIC;
    page->version = LEASE_VERSION;
    page->slots = (uint16_t)slots;
    for (unsigned slot = 0; slot < slots; slot++) {
        atomic_store(&page->slot[slot].taken, LEASE_ZERO);
        atomic_store(&page->slot[slot].bound, LEASE_ZERO);
        atomic_store(&page->slot[slot].limit, LEASE_ZERO);
    }
    return true;
}

bool lease_page_valid(const struct lease_page *page) {
    return page->magic == LEASE_MAGIC && page->version == LEASE_VERSION && page->slots <= LEASE_SLOTS;
}

uint64_t lease_headroom(const struct lease_slot *slot) {
    uint64_t taken = atomic_load(&slot->taken), limit = atomic_load(&slot->limit);
    return limit > taken ? limit - taken : 0;
}

uint64_t lease_look(const struct lease_slot *slot, uint64_t leased) {
    uint64_t headroom = lease_headroom(slot), bound = atomic_load(&slot->bound);
    uint64_t shown = bound - LEASE_ZERO + atomic_load(&slot->granted) + atomic_load(&slot->measured);
    bool whole = atomic_load(&slot->limit) == bound && shown == leased && headroom <= leased;
    return whole ? headroom : UINT64_MAX;
}

uint64_t lease_take_back(struct lease_slot *slot, uint64_t at_most) {
    uint64_t bound = atomic_load(&slot->bound), headroom = lease_headroom(slot);
    uint64_t limit = bound - (headroom < at_most ? headroom : at_most);
    if (limit == bound) return 0;
    atomic_store(&slot->limit, limit);
    uint64_t taken = atomic_load(&slot->taken);
    if (taken > limit) { /* by somebody who may not have seen the new limit: it stays his */
        limit = taken < bound ? taken : bound;
        atomic_store(&slot->limit, limit);
    }
    atomic_store(&slot->bound, limit);
    return bound - limit;
}

void lease_extend(struct lease_slot *slot, uint64_t bytes) {
    uint64_t bound = atomic_load(&slot->bound) + bytes;
    atomic_store(&slot->bound, bound); /* first: nobody may have what is not counted */
    atomic_store(&slot->limit, bound);
}

void lease_settle(struct lease_slot *slot) {
    atomic_store(&slot->limit, 0); /* from here on nobody takes anything */
    uint64_t bound = atomic_load(&slot->bound), taken = atomic_load(&slot->taken);
    uint64_t limit = taken < bound ? taken : bound;
    atomic_store(&slot->limit, limit);
    atomic_store(&slot->bound, limit);
}

uint64_t lease_take_peak(struct lease_slot *slot) {
    uint32_t look = atomic_load(&slot->look);
    uint64_t peak = atomic_load(&slot->peak);
    atomic_store(&slot->look, look + 1);
    if (peak >> LEASE_LOOK_BIT != (look & 0xffff) || peak == 0) return 0;
    uint64_t taken = peak & (((uint64_t)1 << LEASE_LOOK_BIT) - 1);
    uint64_t used = taken - LEASE_ZERO + atomic_load(&slot->granted) + atomic_load(&slot->measured);
    return used > INT64_MAX ? 0 : used;
}
