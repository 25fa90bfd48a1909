#include "lease.h"

#include <stddef.h>

_Static_assert(sizeof(struct lease_slot) == 128, "a slot is two cache lines");
_Static_assert(sizeof(struct lease_page) <= LEASE_PAGE_SIZE, "the page is one page");
_Static_assert(offsetof(struct lease_page, slot) == 128, "slots begin on a cache line");

/* Display only: the scheduler looks once a second and would miss what is taken and freed in between. */
static void note_peak(struct lease_slot *slot, uint64_t headroom) {
    uint64_t granted = atomic_load_explicit(&slot->granted, memory_order_relaxed);
    uint64_t used = granted > headroom ? granted - headroom : 0;
    uint64_t peak = atomic_load_explicit(&slot->peak, memory_order_relaxed);
    while (used > peak && !atomic_compare_exchange_weak_explicit(&slot->peak, &peak, used, memory_order_relaxed,
                                                                 memory_order_relaxed));
}

bool lease_reserve(struct lease_slot *slot, uint64_t bytes) {
    uint64_t headroom = atomic_load(&slot->headroom);
    do {
        if (headroom < bytes) return false;
    } while (!atomic_compare_exchange_weak(&slot->headroom, &headroom, headroom - bytes));
    note_peak(slot, headroom - bytes);
    return true;
}

bool lease_release(struct lease_slot *slot, uint64_t bytes) {
    lease_extend(slot, bytes);
    return atomic_load(&slot->pressure) != 0;
}

uint64_t lease_used(const struct lease_slot *slot) {
    /* Headroom first: if a grant comes in between, `used` is seen too high for a moment, never too low. */
    uint64_t headroom = atomic_load(&slot->headroom);
    uint64_t granted = atomic_load(&slot->granted);
    return granted > headroom ? granted - headroom : 0;
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
    return true;
}

bool lease_page_valid(const struct lease_page *page) {
    return page->magic == LEASE_MAGIC && page->version == LEASE_VERSION && page->slots <= LEASE_SLOTS;
}

uint64_t lease_take_back(struct lease_slot *slot, uint64_t at_most) {
    uint64_t headroom = atomic_load(&slot->headroom);
    uint64_t taken;
    do {
        taken = headroom < at_most ? headroom : at_most;
        if (taken == 0) return 0;
    } while (!atomic_compare_exchange_weak(&slot->headroom, &headroom, headroom - taken));
    return taken;
}

void lease_extend(struct lease_slot *slot, uint64_t bytes) {
    uint64_t headroom = atomic_load(&slot->headroom);
    uint64_t sum;
    do {
        /* A page scribbled over by its program must not wrap round to a small number. */
        sum = headroom + bytes < headroom ? UINT64_MAX : headroom + bytes;
    } while (!atomic_compare_exchange_weak(&slot->headroom, &headroom, sum));
}
