/* The ledger against a plain model of it, and under many threads. */
#include "../ledger.h"

#include "check.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEYS 4096

static struct ledger_entry model[KEYS];

static uint64_t key_of(unsigned index) { return 0x7f0000000000u + (uint64_t)index * 512; }

static unsigned next(unsigned *state) { return *state = *state * 1664525 + 1013904223; }

static struct ledger_entry entry_of(unsigned index, uint64_t bytes) {
    return (struct ledger_entry){.kind = LEDGER_POINTER, .key = key_of(index), .bytes = bytes, .slot = index % 16};
}

static bool put(struct ledger_entry entry, struct ledger_entry *replaced) { return ledger_put(&entry, replaced); }

static long faults(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
}

/* Else the program's own allocations are now and then slower by microseconds, each time another shard is met first. */
static void test_only_the_first_entry_takes_memory_of_the_host(void) {
    struct ledger_entry entry;
    CHECK(put(entry_of(0, 1), &entry) && ledger_take(LEDGER_POINTER, key_of(0), &entry));
    long before = faults();
    for (unsigned index = 1; index < 400; index++) {
        CHECK(put(entry_of(index, 1), &entry));
        CHECK(ledger_take(LEDGER_POINTER, key_of(index), &entry));
    }
#ifndef SHADOWED /* a sanitizer's own memory of each word */
    CHECK(faults() == before);
#else
    (void)before;
#endif
}

static void test_against_a_model(void) {
    unsigned chance = 1;
    for (int step = 0; step < 400000; step++) {
        unsigned index = next(&chance) / 7 % KEYS;
        struct ledger_entry entry, *expected = &model[index];
        switch (next(&chance) / 7 % 3) {
            case 0: {
                struct ledger_entry added = entry_of(index, next(&chance));
                CHECK(put(added, &entry));
                CHECK(entry.kind == expected->kind && (!entry.kind || entry.bytes == expected->bytes));
                *expected = added;
                break;
            }
            case 1:
                CHECK(ledger_take(LEDGER_POINTER, key_of(index), &entry) == (expected->kind != 0));
                CHECK(!expected->kind || entry.bytes == expected->bytes);
                expected->kind = 0;
                break;
            default:
                CHECK(ledger_get(LEDGER_POINTER, key_of(index), &entry) == (expected->kind != 0));
                CHECK(!ledger_get(LEDGER_ARRAY, key_of(index), &entry));
        }
    }
}

static bool of_slot_3(const struct ledger_entry *entry, void *count) {
    if (entry->slot != 3) return false;
    ++*(unsigned *)count;
    return true;
}

static void test_sweep(void) {
    unsigned expected = 0, swept = 0, again = 0;
    for (unsigned index = 0; index < KEYS; index++) expected += model[index].kind && model[index].slot == 3;
    ledger_sweep(of_slot_3, &swept);
    ledger_sweep(of_slot_3, &again);
    CHECK(swept == expected && again == 0);
    for (unsigned index = 0; index < KEYS; index++) {
        struct ledger_entry entry;
        bool there = model[index].kind && model[index].slot != 3;
        CHECK(ledger_get(LEDGER_POINTER, key_of(index), &entry) == there);
    }
}

static bool any(const struct ledger_entry *entry, void *count) {
    (void)entry;
    ++*(unsigned *)count;
    return true;
}

/* Every thread has keys of its own; all share the shards. */
static void *own_keys(void *number) {
    struct ledger_entry entry;
    for (unsigned turn = 0; turn < 20000; turn++) {
        unsigned index = (unsigned)(size_t)number + THREADS * (turn % 500);
        CHECK(put(entry_of(index, turn), &entry) && !entry.kind);
        CHECK(ledger_get(LEDGER_POINTER, key_of(index), &entry) && entry.bytes == turn);
        CHECK(ledger_take(LEDGER_POINTER, key_of(index), &entry) && entry.bytes == turn);
        CHECK(!ledger_take(LEDGER_POINTER, key_of(index), &entry));
    }
    return NULL;
}

int main(void) {
    unsigned left = 0;
    test_only_the_first_entry_takes_memory_of_the_host();
    test_against_a_model();
    test_sweep();
    ledger_sweep(any, &left);
    in_threads(own_keys);
    left = 0;
    ledger_sweep(any, &left);
    CHECK(left == 0);
    /* A child begins with nothing; it does not free either, as another thread of its parent may have been in there. */
    struct ledger_entry entry;
    int status;
    CHECK(put(entry_of(1, 1), &entry));
    pid_t child = fork();
    if (child == 0) {
        ledger_forget();
        CHECK(!ledger_get(LEDGER_POINTER, key_of(1), &entry));
        CHECK(put(entry_of(1, 1), &entry) && !entry.kind);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(ledger_take(LEDGER_POINTER, key_of(1), &entry));
}
