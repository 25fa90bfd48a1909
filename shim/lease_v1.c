#include "lease_v1.h"

bool lease_v1_page_valid(const struct lease_page *page) {
    return page->magic == LEASE_MAGIC && page->version == 1 && page->slots <= LEASE_SLOTS;
}

void lease_v1_page_init(struct lease_page *page, unsigned slots) {
    page->magic = LEASE_MAGIC;
    page->version = 1;
    page->slots = (uint16_t)slots;
}

uint64_t lease_v1_look(const struct lease_slot *slot, uint64_t leased) {
    uint64_t headroom = atomic_load(&slot->taken);
    return atomic_load(&slot->limit) == leased && headroom <= leased ? headroom : UINT64_MAX;
}

uint64_t lease_v1_take_back(struct lease_slot *slot, uint64_t at_most) {
    uint64_t headroom = atomic_load(&slot->taken);
    uint64_t back;
    do {
        back = headroom < at_most ? headroom : at_most;
        if (back == 0) return 0;
    } while (!atomic_compare_exchange_weak(&slot->taken, &headroom, headroom - back));
    return back;
}

void lease_v1_extend(struct lease_slot *slot, uint64_t bytes) {
    uint64_t headroom = atomic_load(&slot->taken);
    uint64_t sum;
    do {
        /* A page scribbled over by its program must not wrap round to a small number. */
        sum = headroom + bytes < headroom ? UINT64_MAX : headroom + bytes;
    } while (!atomic_compare_exchange_weak(&slot->taken, &headroom, sum));
}
