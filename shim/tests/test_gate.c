/* The gate: its edges, and a scheduler that stops ranks which never stop by themselves. */
#include "../gate/gate.h"

#include "check.h"

#include <string.h>
#include <time.h>

static struct gate gate;

static struct gate_step step(int entry, uint32_t count) {
    return (struct gate_step){
        .entry = (uint16_t)entry, .serial = atomic_load(&gate.entry[entry].serial), .count = count};
}

static bool try(int entry, uint32_t count) {
    struct gate_step one = step(entry, count);
    return gate_try(&gate, &one, 1);
}

static struct gate_look look(int entry) {
    struct gate_look seen;
    CHECK(gate_look(&gate, (unsigned)entry, &seen));
    return seen;
}

static int fresh(void) {
    memset(&gate, 0, sizeof gate);
    return gate_open(&gate, 7, GATE_COLLECTIVE, 2, 1, 0);
}

static void test_counting(void) {
    int entry = fresh();
    struct gate_step one = step(entry, 3);
    CHECK(gate_try(&gate, &one, 1) && one.target == 3 && look(entry).begun == 3 && look(entry).given == 0);
    gate_end(&gate, &one, 1, true);
    CHECK(look(entry).given == 3);
    CHECK(gate_try(&gate, &one, 1));
    gate_end(&gate, &one, 1, false);
    CHECK(look(entry).begun == 3 && look(entry).given == 3);
}

static void test_shut_at_the_limit(void) {
    int entry = fresh();
    CHECK(try(entry, 1));
    gate_ask(&gate);
    CHECK(!try(entry, 1) && look(entry).begun == 1 && look(entry).wanted == 2);
    gate_limit(&gate, (unsigned)entry, look(entry).serial, 2);
    CHECK(!try(entry, 2) && look(entry).wanted == 3);
    CHECK(try(entry, 1) && !try(entry, 1));
    gate_let_go(&gate);
    CHECK(try(entry, 100));
    gate_ask(&gate);
    gate_limit(&gate, (unsigned)entry, look(entry).serial, UINT64_MAX);
    CHECK(try(entry, 1) && look(entry).limit == UINT64_MAX >> 16);
}

static void test_together_or_not_at_all(void) {
    int first = fresh(), second = gate_open(&gate, 8, GATE_SEND, 2, 0, 1);
    struct gate_step steps[] = {step(first, 1), step(second, 2), step(first, 1)}; /* two of one channel */
    gate_ask(&gate);
    gate_limit(&gate, (unsigned)first, look(first).serial, 2);
    gate_limit(&gate, (unsigned)second, look(second).serial, 1);
    CHECK(!gate_try(&gate, steps, 3));
    CHECK(look(first).begun == 0 && look(first).wanted == 2 && look(second).begun == 0 && look(second).wanted == 2);
    gate_limit(&gate, (unsigned)second, look(second).serial, 2);
    CHECK(gate_try(&gate, steps, 3) && look(first).begun == 2 && look(second).begun == 2);
}

static void test_entries_are_used_anew(void) {
    int entry = fresh();
    gate_ask(&gate);
    gate_limit(&gate, (unsigned)entry, look(entry).serial, 9);
    struct gate_step old = step(entry, 1);
    gate_leave(&gate, entry);
    CHECK(look(entry).kind == (GATE_COLLECTIVE | GATE_LEFT) &&
          !gate_pass(&gate, &(struct gate_step){.entry = (uint16_t)entry, .count = 10}, 1));
    for (int more = 1; more < GATE_ENTRIES; more++) CHECK(gate_open(&gate, 9, GATE_COLLECTIVE, 1, 0, 0) == more);
    CHECK(gate_open(&gate, 10, GATE_COLLECTIVE, 1, 0, 0) == entry && gate.unseen == 0);
    CHECK(look(entry).limit == 0 && look(entry).serial == old.serial + 2 && look(entry).communicator == 10);
    gate_end(&gate, &old, 1, true); /* of the one before */
    CHECK(look(entry).given == 0 && !try(entry, 1));
    CHECK(gate_open(&gate, 11, GATE_COLLECTIVE, 1, 0, 0) == -1 && gate.unseen == GATE_UNSEEN_FULL);
    gate_describe(&gate, entry, 5, 4);
    CHECK(look(entry).serial == old.serial + 2 && look(entry).ranks == 5 && look(entry).rank == 4);
    atomic_fetch_add(&gate.entry[entry].serial, 1); /* as while it is written */
    struct gate_look seen;
    CHECK(!gate_look(&gate, (unsigned)entry, &seen));
}

/* Nobody says anything any more: one is held once, and never again by that word. */
static void test_silence(void) {
    int entry = fresh();
    struct timespec before, after;
    gate_ask(&gate);
    clock_gettime(CLOCK_MONOTONIC, &before);
    struct gate_step one = step(entry, 1);
    CHECK(gate_pass(&gate, &one, 1) && gate.passed == 1);
    clock_gettime(CLOCK_MONOTONIC, &after);
    CHECK(after.tv_sec > before.tv_sec && gate_pass(&gate, &one, 1) && gate.passed == 1);
    gate_ask(&gate); /* the next one */
    CHECK(!try(entry, 1));
}

/* ---- ranks that go on and on, and a scheduler that stops them ---- */

#define STOPS 30

static int ends[THREADS - 1];
static _Atomic bool enough;

static void stop_all(void) {
    gate_ask(&gate);
    for (bool same = false; !same;) {
        uint64_t most = 0;
        same = true;
        for (int rank = 0; rank < THREADS - 1; rank++) {
            struct gate_look seen = look(ends[rank]);
            if (seen.begun > most) most = seen.begun;
            if (seen.limit > most) most = seen.limit;
        }
        for (int rank = 0; rank < THREADS - 1; rank++) {
            struct gate_look seen = look(ends[rank]);
            if (seen.limit < most) gate_limit(&gate, (unsigned)ends[rank], seen.serial, most);
            same &= seen.limit == most && seen.given == most && seen.begun == most;
        }
        if (!same) gate_ask(&gate);
    }
    uint64_t cut = look(ends[0]).given;
    for (int again = 0; again < 100; again++)
        for (int rank = 0; rank < THREADS - 1; rank++)
            CHECK(look(ends[rank]).given == cut && look(ends[rank]).begun >= cut);
    gate_let_go(&gate);
}

static void *rank_or_scheduler(void *number) {
    size_t rank = (size_t)number;
    if (rank == THREADS - 1) {
        for (int stop = 0; stop < STOPS; stop++) stop_all();
        atomic_store(&enough, true);
        return NULL;
    }
    struct gate_step one = step(ends[rank], 1);
    while (!atomic_load(&enough)) {
        CHECK(gate_pass(&gate, &one, 1));
        gate_end(&gate, &one, 1, true);
    }
    return NULL;
}

static void test_a_cut_is_stable(void) {
    fresh();
    for (int rank = 0; rank < THREADS - 1; rank++)
        ends[rank] = gate_open(&gate, 7, GATE_COLLECTIVE, THREADS - 1, (uint32_t)rank, 0);
    in_threads(rank_or_scheduler);
}

int main(void) {
    test_counting();
    test_shut_at_the_limit();
    test_together_or_not_at_all();
    test_entries_are_used_anew();
    test_silence();
    test_a_cut_is_stable();
    return 0;
}
