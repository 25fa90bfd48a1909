/* The lease page's arithmetic: at its edges, and from both sides at once. */
#include "../lease.h"

#include "check.h"

#include <string.h>

static struct lease_page page;
static struct lease_slot *slot = &page.slot[0];

static void fresh(void) {
    memset(&page, 0, sizeof page);
    CHECK(lease_page_init(&page, 2));
}

static void test_pages(void) {
    fresh();
    CHECK(lease_page_valid(&page));
    CHECK(!lease_page_init(&page, LEASE_SLOTS + 1));
    CHECK(lease_page_init(&page, LEASE_SLOTS) && page.slots == LEASE_SLOTS);
    page.version++;
    CHECK(!lease_page_valid(&page));
}

static void test_reserving(void) {
    fresh();
    CHECK(!lease_reserve(slot, 1));
    CHECK(lease_reserve(slot, 0));
    lease_extend(slot, 10);
    CHECK(lease_reserve(slot, 10) && !lease_reserve(slot, 1));
    CHECK(!lease_release(slot, 4));
    CHECK(lease_take_back(slot, 3) == 3 && lease_take_back(slot, 3) == 1 && lease_take_back(slot, 3) == 0);
    slot->pressure = 1;
    CHECK(lease_release(slot, 1));
}

static void test_edges(void) {
    fresh();
    lease_extend(slot, UINT64_MAX - 1);
    lease_extend(slot, 5);
    CHECK(slot->headroom == UINT64_MAX);
    CHECK(lease_used(slot) == 0); /* granted 0, headroom scribbled over */
    slot->granted = UINT64_MAX;
    slot->headroom = 0;
    slot->quota = 7;
    CHECK(lease_used(slot) == UINT64_MAX && lease_claim(slot) == 0);
    slot->granted = 0;
    slot->elsewhere = UINT64_MAX;
    CHECK(lease_claim(slot) == 0);
    slot->elsewhere = 3;
    CHECK(lease_claim(slot) == 4);
}

static _Atomic uint64_t taken;

/* Half of the threads allocate and free, the others take back and extend: no byte may be made or lost. */
static void *both_sides(void *index) {
    for (int turn = 0; turn < 20000; turn++) {
        uint64_t bytes = (uint64_t)turn % 7 + 1;
        if ((size_t)index % 2) {
            if (lease_reserve(slot, bytes)) lease_release(slot, bytes);
        } else {
            uint64_t got = lease_take_back(slot, bytes);
            atomic_fetch_add(&taken, got);
            if (turn % 3) {
                atomic_fetch_sub(&taken, got);
                lease_extend(slot, got);
            }
        }
    }
    return NULL;
}

static void test_both_sides_at_once(void) {
    fresh();
    lease_extend(slot, 100000);
    in_threads(both_sides);
    CHECK(slot->headroom + taken == 100000);
}

static _Atomic int woken;
static _Atomic int waiting;

/* The wake-up rule: whoever adds headroom, then looks at the flag; whoever sets the flag, then looks at the headroom.
 */
static void *releaser(void *unused) {
    (void)unused;
    if (lease_release(slot, 1)) atomic_fetch_add(&woken, 1);
    return NULL;
}

static void *waiter(void *unused) {
    (void)unused;
    atomic_store(&slot->pressure, 1);
    if (lease_take_back(slot, 1) == 0) atomic_store(&waiting, 1);
    return NULL;
}

static void test_no_release_is_missed(void) {
    for (int round = 0; round < 2000; round++) {
        pthread_t one, two;
        fresh();
        woken = waiting = 0;
        CHECK(pthread_create(&one, NULL, waiter, NULL) == 0 && pthread_create(&two, NULL, releaser, NULL) == 0);
        pthread_join(one, NULL);
        pthread_join(two, NULL);
        CHECK(!waiting || woken);
    }
}

int main(void) {
    test_pages();
    test_reserving();
    test_edges();
    test_both_sides_at_once();
    test_no_release_is_missed();
}
