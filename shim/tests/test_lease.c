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
    lease_extend(slot, 10);
    CHECK(!lease_reserve(slot, UINT64_MAX) && !lease_reserve(slot, UINT64_MAX - 10));
    CHECK(!lease_reserve(slot, INT64_MAX) && lease_headroom(slot) == 10);
    atomic_store(&slot->taken, INT64_MAX); /* scribbled over */
    CHECK(!lease_reserve(slot, 1) && lease_headroom(slot) == 0 && lease_take_back(slot, 5) == 0);
    slot->quota = 7;
    CHECK(lease_claim(slot) == 0);
    fresh();
    slot->elsewhere = INT64_MAX;
    slot->quota = 7;
    CHECK(lease_used(slot) == 0 && lease_claim(slot) == 0);
    slot->elsewhere = 3;
    CHECK(lease_claim(slot) == 4);
    slot->granted = 2;
    slot->measured = 1;
    CHECK(lease_used(slot) == 3 && lease_claim(slot) == 1);
}

static void test_freed_below_the_beginning(void) {
    fresh();
    slot->granted = 8;
    lease_accept(slot, 8);
    CHECK(lease_used(slot) == 8 && lease_headroom(slot) == 0);
    lease_release(slot, 6);
    CHECK(lease_used(slot) == 2 && lease_headroom(slot) == 6);
    CHECK(lease_reserve(slot, 6) && !lease_reserve(slot, 1));
}

/* As often as a program may free what came by message: the scale has no lower end. */
static void test_scale_goes_round(void) {
    fresh();
    slot->taken = slot->limit = slot->bound = (uint64_t)INT64_MIN + 5;
    slot->granted = slot->accepted = (uint64_t)INT64_MIN + 5; /* taken + granted is 10 */
    CHECK(lease_used(slot) == 10 && lease_headroom(slot) == 0 && lease_look(slot, 10) == 0);
    lease_release(slot, 8);
    CHECK(lease_used(slot) == 2 && lease_headroom(slot) == 8 && lease_look(slot, 10) == 8);
    CHECK(!lease_reserve(slot, 9) && lease_reserve(slot, 1) && lease_take_peak(slot) == 10);
    CHECK(lease_take_back(slot, 3) == 3 && lease_take_back(slot, 9) == 4 && !lease_reserve(slot, 1));
    lease_extend(slot, 6);
    CHECK(lease_reserve(slot, 6) && lease_used(slot) == 9);
    lease_close(slot);
    CHECK(!lease_reserve(slot, 1) && !lease_reserve(slot, INT64_MAX));
    lease_settle(slot);
    CHECK(lease_headroom(slot) == 0 && lease_used(slot) == 9);
}

static void test_peaks(void) {
    fresh();
    lease_extend(slot, 100);
    CHECK(lease_take_peak(slot) == 0);
    CHECK(lease_reserve(slot, 70));
    lease_release(slot, 60);
    lease_release(slot, 5);
    CHECK(lease_take_peak(slot) == 70 && lease_take_peak(slot) == 0);
    for (int look = 0; look < 70000; look++) { /* the number goes round */
        lease_release(slot, 5);
        CHECK(lease_take_peak(slot) == 5 && lease_take_peak(slot) == 0);
        CHECK(lease_reserve(slot, 5));
    }
}

static void test_peak_is_what_was_held_however_it_came(void) {
    fresh();
    slot->granted = 50;
    lease_accept(slot, 50);
    lease_release(slot, 20);
    slot->granted += 30; /* granted, and not heard of */
    CHECK(lease_take_peak(slot) == 50);
    lease_accept(slot, 30);
    lease_release(slot, 10);
    slot->measured = 1;
    CHECK(lease_take_peak(slot) == 61 && lease_take_peak(slot) == 0);
}

static void test_peak_that_was_not_seen_is_not_replaced_by_less(void) {
    fresh();
    lease_extend(slot, 100);
    CHECK(lease_reserve(slot, 70));
    lease_release(slot, 10);
    uint64_t seen = slot->peak; /* the scheduler has looked, and is about to say so */
    CHECK(lease_reserve(slot, 30));
    lease_release(slot, 80);
    slot->look = (uint16_t)seen;
    lease_release(slot, 1);
    CHECK(lease_take_peak(slot) == 90);
}

static void test_what_is_written_over_shows(void) {
    fresh();
    lease_extend(slot, 100);
    CHECK(lease_reserve(slot, 30) && lease_look(slot, 100) == 70 && lease_look(slot, 99) == UINT64_MAX);
    slot->limit++;
    CHECK(lease_look(slot, 100) == UINT64_MAX);
    slot->limit--;
    slot->taken -= 31; /* as if it had freed what it never had */
    CHECK(lease_look(slot, 100) == UINT64_MAX);
}

static void test_settling(void) {
    fresh();
    lease_extend(slot, 100);
    CHECK(lease_reserve(slot, 30));
    lease_settle(slot);
    CHECK(lease_headroom(slot) == 0 && lease_used(slot) == 30 && !lease_reserve(slot, 1));
    atomic_store(&slot->limit, 5); /* a scheduler died while it took back */
    lease_settle(slot);
    CHECK(lease_used(slot) == 30 && slot->limit == 30);
    atomic_store(&slot->taken, 40); /* a thread stopped before it saw that ten were taken back */
    lease_settle(slot);
    CHECK(slot->limit == 30 && slot->bound == slot->limit);
}

#define LEASED 100
static _Atomic uint64_t held, given;

/* All threads but one allocate and free; that one, the scheduler, takes back and extends. Nobody ever holds more than
 * is leased at that moment, and no byte is made or lost. */
static void *both_sides(void *index) {
    for (int turn = 0; turn < 20000; turn++) {
        uint64_t bytes = (uint64_t)turn % 7 + 1;
        if (index == NULL) {
            uint64_t got = lease_take_back(slot, bytes * 8);
            CHECK(atomic_fetch_add(&given, got) + got + atomic_load(&held) <= LEASED);
            atomic_fetch_sub(&given, got);
            lease_extend(slot, got);
        } else if (lease_reserve(slot, bytes)) {
            CHECK(atomic_fetch_add(&held, bytes) + bytes + atomic_load(&given) <= LEASED);
            atomic_fetch_sub(&held, bytes);
            lease_release(slot, bytes);
        }
    }
    return NULL;
}

static void test_both_sides_at_once(void) {
    fresh();
    lease_extend(slot, LEASED);
    in_threads(both_sides);
    CHECK(lease_headroom(slot) == LEASED && lease_used(slot) == 0);
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
    test_freed_below_the_beginning();
    test_scale_goes_round();
    test_peaks();
    test_peak_is_what_was_held_however_it_came();
    test_peak_that_was_not_seen_is_not_replaced_by_less();
    test_what_is_written_over_shows();
    test_settling();
    test_both_sides_at_once();
    test_no_release_is_missed();
}
