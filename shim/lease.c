#include "lease.h"

#include <stddef.h>

_Static_assert(sizeof(struct lease_slot) == 128, "a slot is two cache lines");
_Static_assert(sizeof(struct lease_page) <= LEASE_PAGE_SIZE, "all of it is mapped");
_Static_assert(offsetof(struct lease_page, gate) % 64 == 0, "the gate begins on a cache line");
_Static_assert(offsetof(struct lease_page, slot) == 128, "slots begin on a cache line");
_Static_assert(offsetof(struct lease_page, inside) == 64, "a cache line of its own");

#define FAR ((uint64_t)1 << 62) /* below everything that a process can have taken */

/* How far a place on the scale is above another, which may be where the numbers have gone round. */
static int64_t above(uint64_t place, uint64_t other) { return (int64_t)(place - other); }

static uint64_t lower(uint64_t place, uint64_t other) { return above(place, other) < 0 ? place : other; }

/* The scheduler has taken back what this thread was about to have. */
__attribute__((cold, noinline)) static bool undo(struct lease_slot *slot, uint64_t bytes) {
    atomic_fetch_sub(&slot->taken, bytes);
    return false;
}

bool lease_reserve(struct lease_slot *slot, uint64_t bytes) {
    uint64_t taken = atomic_load(&slot->taken);
    do {
        int64_t headroom = above(atomic_load(&slot->limit), taken);
        if (headroom < 0 || bytes > (uint64_t)headroom) return false;
    } while (!atomic_compare_exchange_weak(&slot->taken, &taken, taken + bytes));
    return above(atomic_load(&slot->limit), taken + bytes) >= 0 || undo(slot, bytes);
}

/* Whether this much is to be noted: `peak` has less, or has been seen. */
static bool notable(uint64_t held, uint16_t look, uint64_t peak) { return held > peak || (uint16_t)peak == look; }

__attribute__((cold, noinline)) static void note_peak(struct lease_slot *slot, uint64_t held) {
    uint16_t look;
    uint64_t peak;
    do {
        look = atomic_load(&slot->look);
        peak = atomic_load(&slot->peak);
    } while (notable(held, look, peak) &&
             !atomic_compare_exchange_weak(&slot->peak, &peak, held | (uint16_t)(peak + 1)));
}

bool lease_release(struct lease_slot *slot, uint64_t bytes) {
    uint64_t accepted = atomic_load(&slot->accepted);
    uint64_t held = (atomic_fetch_sub(&slot->taken, bytes) + accepted) << LEASE_PEAK_SHIFT;
    uint16_t look = atomic_load(&slot->look);
    if (notable(held, look, atomic_load(&slot->peak))) note_peak(slot, held);
    return atomic_load(&slot->pressure) != 0;
}

bool lease_enter(struct lease_page *page) {
    atomic_fetch_add(&page->inside, 1);
    if (atomic_load(&page->moving) == 0) return true;
    lease_leave(page);
    return false;
}

void lease_leave(struct lease_page *page) { atomic_fetch_sub(&page->inside, 1); }

void lease_share(struct lease_page *page) { atomic_fetch_add(&page->sharing, 1); }

void lease_shares(struct lease_page *page, uint32_t how) {
    atomic_fetch_or(&page->shared, how);
    atomic_fetch_sub(&page->sharing, 1);
}

void lease_accept(struct lease_slot *slot, uint64_t bytes) { atomic_fetch_add(&slot->accepted, bytes); }

uint64_t lease_used(const struct lease_slot *slot) {
    uint64_t used = atomic_load(&slot->taken) + atomic_load(&slot->granted) + atomic_load(&slot->measured);
    return above(used, 0) > 0 ? used : 0;
}

uint64_t lease_claim(const struct lease_slot *slot) {
    uint64_t quota = atomic_load(&slot->quota), elsewhere = atomic_load(&slot->elsewhere);
    uint64_t taken = atomic_load(&slot->taken), granted = atomic_load(&slot->granted);
    int64_t claim = above(quota, elsewhere + taken + granted + atomic_load(&slot->measured));
    return claim > 0 ? (uint64_t)claim : 0;
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

void lease_hold(struct lease_page *page, bool moving) { atomic_store(&page->moving, moving); }

uint32_t lease_inside(const struct lease_page *page) { return atomic_load(&page->inside); }

uint32_t lease_shared(const struct lease_page *page) {
    uint32_t now = atomic_load(&page->sharing) ? LEASE_SHARES_NOW : 0; /* first: lease.h says why */
    return now | atomic_load(&page->shared);
}

uint64_t lease_headroom(const struct lease_slot *slot) {
    uint64_t taken = atomic_load(&slot->taken);
    int64_t headroom = above(atomic_load(&slot->limit), taken);
    return headroom > 0 ? (uint64_t)headroom : 0;
}

uint64_t lease_look(const struct lease_slot *slot, uint64_t leased) {
    uint64_t headroom = lease_headroom(slot), bound = atomic_load(&slot->bound);
    uint64_t shown = bound + atomic_load(&slot->granted) + atomic_load(&slot->measured);
    bool whole = atomic_load(&slot->limit) == bound && shown == leased && headroom <= leased;
    return whole ? headroom : UINT64_MAX;
}

uint64_t lease_take_back(struct lease_slot *slot, uint64_t at_most) {
    uint64_t bound = atomic_load(&slot->bound), headroom = lease_headroom(slot);
    uint64_t limit = bound - (headroom < at_most ? headroom : at_most);
    if (limit == bound) return 0;
    atomic_store(&slot->limit, limit);
    uint64_t taken = atomic_load(&slot->taken);
    if (above(taken, limit) > 0) { /* by somebody who may not have seen the new limit: it stays his */
        limit = lower(taken, bound);
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

void lease_close(struct lease_slot *slot) { atomic_store(&slot->limit, atomic_load(&slot->bound) - FAR); }

void lease_settle(struct lease_slot *slot) {
    lease_close(slot); /* from here on nobody takes anything */
    uint64_t bound = atomic_load(&slot->bound), taken = atomic_load(&slot->taken);
    uint64_t limit = lower(taken, bound);
    atomic_store(&slot->limit, limit);
    atomic_store(&slot->bound, limit);
}

uint64_t lease_take_peak(struct lease_slot *slot) {
    uint64_t peak = atomic_load(&slot->peak);
    if ((uint16_t)peak == atomic_load(&slot->look)) return 0;
    atomic_store(&slot->look, (uint16_t)peak);
    return (peak >> LEASE_PEAK_SHIFT) + atomic_load(&slot->measured);
}
