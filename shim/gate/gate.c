#include "gate.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

_Static_assert(sizeof(struct gate_entry) == 64, "an entry is a cache line");
_Static_assert(offsetof(struct gate, entry) == 64, "what every operation reads is on a cache line of its own");

#define NUMBER (((uint64_t)1 << GATE_SERIAL_SHIFT) - 1)

/* Between processes, so not FUTEX_PRIVATE. Keeps errno; not a cancellation point. */
static void futex(_Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *at_most) {
    int saved = errno;
    syscall(SYS_futex, word, operation, value, at_most, NULL, 0);
    errno = saved;
}

static void wake(struct gate *gate) { futex(&gate->asked, FUTEX_WAKE, INT_MAX, NULL); }

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* ---- entries ---- */

/* Those never used before those that were left, of which the longest unused: who looks later still sees who was there.
 */
static int vacant(struct gate *gate) {
    static unsigned next;
    uint32_t used = atomic_load(&gate->used);
    if (used < GATE_ENTRIES) {
        atomic_store(&gate->used, used + 1);
        return (int)used;
    }
    for (unsigned tries = 0; tries < GATE_ENTRIES; tries++) {
        unsigned entry = next++ % GATE_ENTRIES;
        if (atomic_load(&gate->entry[entry].kind) & GATE_LEFT) return (int)entry;
    }
    return -1;
}

static uint16_t begin_writing(struct gate_entry *entry) {
    uint16_t serial = atomic_load(&entry->serial);
    atomic_store(&entry->serial, (uint16_t)(serial + 1));
    return serial;
}

int gate_open(struct gate *gate, uint64_t communicator, uint16_t kind, uint32_t ranks, uint32_t rank, uint32_t peer) {
    int index = vacant(gate);
    if (index < 0) {
        gate_unsee(gate, GATE_UNSEEN_FULL);
        return -1;
    }
    struct gate_entry *entry = &gate->entry[index];
    uint16_t serial = begin_writing(entry);
    atomic_store(&entry->begun, 0);
    atomic_store(&entry->given, 0);
    atomic_store(&entry->wanted, 0);
    atomic_store(&entry->communicator, communicator);
    atomic_store(&entry->ranks, ranks);
    atomic_store(&entry->rank, rank);
    atomic_store(&entry->peer, peer);
    atomic_store(&entry->kind, kind);
    atomic_store(&entry->serial, (uint16_t)(serial + 2));
    return index;
}

void gate_describe(struct gate *gate, int index, uint32_t ranks, uint32_t rank) {
    struct gate_entry *entry = &gate->entry[index];
    uint16_t serial = begin_writing(entry);
    atomic_store(&entry->ranks, ranks);
    atomic_store(&entry->rank, rank);
    atomic_store(&entry->serial, serial); /* the same channel as before */
}

void gate_leave(struct gate *gate, int index) {
    atomic_fetch_or(&gate->entry[index].kind, GATE_LEFT);
    wake(gate);
}

void gate_unsee(struct gate *gate, enum gate_unseen what) {
    if (!(atomic_load(&gate->unseen) & what)) atomic_fetch_or(&gate->unseen, what);
}

/* ---- passing ---- */

static bool open_now(const struct gate *gate, uint32_t asked) {
    return asked == 0 || asked == atomic_load(&gate->silent);
}

/* Whether the limits allow what the steps are to come to. */
static bool allowed(const struct gate *gate, const struct gate_step *steps, size_t count) {
    for (size_t at = 0; at < count; at++) {
        const struct gate_entry *entry = &gate->entry[steps[at].entry];
        uint64_t limit = atomic_load(&entry->limit);
        uint16_t serial = atomic_load(&entry->serial);
        uint64_t number = limit >> GATE_SERIAL_SHIFT == serial ? limit & NUMBER : 0;
        if (steps[at].target > number) return false;
    }
    return true;
}

static bool left(const struct gate *gate, const struct gate_step *steps, size_t count) {
    for (size_t at = 0; at < count; at++) {
        const struct gate_entry *entry = &gate->entry[steps[at].entry];
        if (atomic_load(&entry->kind) & GATE_LEFT || atomic_load(&entry->serial) != steps[at].serial) return true;
    }
    return false;
}

__attribute__((cold, noinline)) static bool hold_back(struct gate *gate, struct gate_step *steps, size_t count) {
    for (size_t at = 0; at < count; at++) atomic_fetch_sub(&gate->entry[steps[at].entry].begun, steps[at].count);
    /* In their order: of two of one channel, the later one's number is the higher. */
    for (size_t at = 0; at < count; at++) atomic_store(&gate->entry[steps[at].entry].wanted, steps[at].target);
    return false;
}

bool gate_try(struct gate *gate, struct gate_step *steps, size_t count) {
    for (size_t at = 0; at < count; at++)
        steps[at].target = atomic_fetch_add(&gate->entry[steps[at].entry].begun, steps[at].count) + steps[at].count;
    uint32_t asked = atomic_load(&gate->asked);
    if (open_now(gate, asked) || allowed(gate, steps, count)) return true;
    return hold_back(gate, steps, count);
}

/* Waits until another try is worth it. False: never. */
static bool wait(struct gate *gate, const struct gate_step *steps, size_t count) {
    uint32_t asked = atomic_load(&gate->asked), seen = asked;
    for (uint64_t since = now_ns(); !open_now(gate, asked) && !allowed(gate, steps, count);
         asked = atomic_load(&gate->asked)) {
        uint64_t now = now_ns();
        if (left(gate, steps, count)) return false;
        if (asked != seen) {
            seen = asked;
            since = now;
        } else if (now - since >= GATE_SILENCE_NS) {
            atomic_store(&gate->silent, asked);
            atomic_fetch_add(&gate->passed, 1);
            return true;
        }
        struct timespec at_most = {0, GATE_BEAT_NS};
        futex(&gate->asked, FUTEX_WAIT, asked, &at_most);
    }
    return true;
}

bool gate_pass(struct gate *gate, struct gate_step *steps, size_t count) {
    while (!gate_try(gate, steps, count))
        if (!wait(gate, steps, count)) return false;
    return true;
}

void gate_end(struct gate *gate, const struct gate_step *steps, size_t count, bool given) {
    for (size_t at = 0; at < count; at++) {
        struct gate_entry *entry = &gate->entry[steps[at].entry];
        if (atomic_load(&entry->serial) != steps[at].serial) continue; /* left meanwhile, and used anew */
        if (given)
            atomic_fetch_add(&entry->given, steps[at].count);
        else
            atomic_fetch_sub(&entry->begun, steps[at].count);
    }
}

/* ---- the scheduler ---- */

void gate_ask(struct gate *gate) {
    uint32_t next = atomic_load(&gate->last) + 1;
    if (next == 0) next++;
    atomic_store(&gate->last, next);
    atomic_store(&gate->asked, next);
    wake(gate);
}

void gate_let_go(struct gate *gate) {
    atomic_store(&gate->asked, 0);
    wake(gate);
}

void gate_limit(struct gate *gate, unsigned index, uint16_t serial, uint64_t number) {
    if (number > NUMBER) number = NUMBER;
    atomic_store(&gate->entry[index].limit, (uint64_t)serial << GATE_SERIAL_SHIFT | number);
}

bool gate_look(const struct gate *gate, unsigned index, struct gate_look *look) {
    const struct gate_entry *entry = &gate->entry[index];
    uint16_t serial = atomic_load(&entry->serial);
    uint64_t limit = atomic_load(&entry->limit);
    *look = (struct gate_look){
        .communicator = atomic_load(&entry->communicator),
        .ranks = atomic_load(&entry->ranks),
        .rank = atomic_load(&entry->rank),
        .peer = atomic_load(&entry->peer),
        .kind = atomic_load(&entry->kind),
        .serial = serial,
        .given = atomic_load(&entry->given), /* before `begun`, which is never below it */
        .begun = atomic_load(&entry->begun),
        .wanted = atomic_load(&entry->wanted),
        .limit = limit >> GATE_SERIAL_SHIFT == serial ? limit & NUMBER : 0,
    };
    return !(serial & 1) && atomic_load(&entry->serial) == serial && look->communicator != 0;
}
