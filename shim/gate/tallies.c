#include "tallies.h"

#include "fork.h"
#include "lock.h"

#include <stdlib.h>
#include <string.h>

#define BUCKETS 256

_Atomic int tallies;

static struct tally {
    struct tally *next;
    enum tally_of of;
    uint64_t key;
    size_t count, room;
    struct gate_step *steps; /* one of each channel */
} *buckets[BUCKETS];

static struct lock lock;

static void tallies_forget(void) {
    memset(buckets, 0, sizeof buckets);
    atomic_store(&tallies, 0);
    atomic_store(&lock.word, 0);
}
FORGET_IN_CHILD(tallies_forget);

static struct tally **find(enum tally_of of, uint64_t key) {
    struct tally **link = &buckets[(key * UINT64_C(0x9e3779b97f4a7c15)) >> 56];
    while (*link && ((*link)->of != of || (*link)->key != key)) link = &(*link)->next;
    return link;
}

static void add(struct tally *tally, const struct gate_step *step) {
    for (size_t at = 0; at < tally->count; at++) {
        if (tally->steps[at].entry != step->entry || tally->steps[at].serial != step->serial) continue;
        tally->steps[at].count += step->count;
        return;
    }
    if (tally->count == tally->room) {
        size_t room = tally->room ? 2 * tally->room : 8;
        struct gate_step *wider = realloc(tally->steps, room * sizeof *wider);
        if (!wider) return;
        tally->steps = wider;
        tally->room = room;
    }
    tally->steps[tally->count++] = *step;
}

/* The lock is held. */
static void add_all(enum tally_of of, uint64_t key, const struct gate_step *steps, size_t count) {
    struct tally **link = find(of, key);
    if (!*link) {
        struct tally *made = calloc(1, sizeof *made);
        if (!made) return;
        made->of = of;
        made->key = key;
        *link = made;
        atomic_fetch_add(&tallies, 1);
    }
    for (size_t at = 0; at < count; at++) add(*link, &steps[at]);
}

void tally_add(enum tally_of of, uint64_t key, const struct gate_step *steps, size_t count) {
    lock_take(&lock);
    add_all(of, key, steps, count);
    lock_drop(&lock);
}

void tally_pass_on(enum tally_of from, uint64_t key, enum tally_of to, uint64_t other) {
    if (!atomic_load(&tallies)) return;
    lock_take(&lock);
    const struct tally *tally = *find(from, key);
    if (tally) add_all(to, other, tally->steps, tally->count);
    lock_drop(&lock);
}

void tally_drop(enum tally_of of, uint64_t key) {
    if (!atomic_load(&tallies)) return;
    lock_take(&lock);
    struct tally **link = find(of, key), *tally = *link;
    if (tally) {
        *link = tally->next;
        atomic_fetch_sub(&tallies, 1);
        free(tally->steps);
        free(tally);
    }
    lock_drop(&lock);
}

struct gate_step *tally_copy(const struct gate *gate, enum tally_of of, uint64_t key, size_t *count) {
    struct gate_step *copy = NULL;
    *count = 0;
    lock_take(&lock);
    const struct tally *tally = *find(of, key);
    if (tally && tally->count) copy = malloc(tally->count * sizeof *copy);
    for (size_t at = 0; copy && at < tally->count; at++) {
        const struct gate_entry *entry = &gate->entry[tally->steps[at].entry];
        bool gone = atomic_load(&entry->serial) != tally->steps[at].serial || atomic_load(&entry->kind) & GATE_LEFT;
        if (!gone) copy[(*count)++] = tally->steps[at];
    }
    lock_drop(&lock);
    return copy;
}
