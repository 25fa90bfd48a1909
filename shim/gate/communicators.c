#include "communicators.h"

#include "client.h"
#include "fork.h"
#include "lock.h"
#include "resolve.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RANKS 1024 /* twice what the gate has entries for: open addressing wants room */
#define FREED ((ncclComm_t)1)

static struct rank {
    _Atomic(ncclComm_t) comm; /* NULL: never used. Found without a lock */
    uint64_t communicator;
    uint32_t ranks, rank, splits;
    int entry;       /* of its collectives; −1: not published yet */
    uint16_t *pairs; /* by peer, sends and receives: the entry + 1; as large as `ranks` was when it was made */
} ranks[RANKS];

/* Those without a handle of NCCL's yet, in the order in which they were made; and those of this thread's group. */
static struct expected {
    struct expected *next;
    struct newcomer newcomer;
    ncclComm_t *where;
} *expected;
static _Thread_local struct expected *of_group;

static struct lock lock; /* of all but the finding */

static void communicators_forget(void) {
    memset(ranks, 0, sizeof ranks);
    expected = of_group = NULL;
    atomic_store(&lock.word, 0);
}
FORGET_IN_CHILD(communicators_forget);

struct gate *gate_here(void) {
    struct lease_page *page = client_page();
    return page ? &page->gate : NULL;
}

/* ---- identities ---- */

static uint64_t mix(uint64_t sum, uint64_t word) {
    sum = (sum ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return sum ^ sum >> 32;
}

uint64_t communicator_of(const ncclUniqueId *ids, unsigned count) {
    uint64_t sum = count, word;
    for (size_t at = 0; at < count * sizeof *ids; at += sizeof word) {
        memcpy(&word, (const char *)ids + at, sizeof word);
        sum = mix(sum, word);
    }
    return sum | 1; /* 0 is none */
}

static size_t place_of(ncclComm_t comm) { return (size_t)(mix(0, (uint64_t)(uintptr_t)comm) >> 20) % RANKS; }

static struct rank *find(ncclComm_t comm) {
    for (size_t at = place_of(comm), tries = 0; tries < RANKS; at = (at + 1) % RANKS, tries++) {
        ncclComm_t found = atomic_load_explicit(&ranks[at].comm, memory_order_acquire);
        if (found == comm) return &ranks[at];
        if (!found) return NULL;
    }
    return NULL;
}

/* All ranks of the parent split it, in the same order. */
uint64_t communicator_of_split(ncclComm_t parent, int color) {
    struct rank *rank = find(parent);
    if (!rank) return communicator_unlike_any();
    return mix(mix(rank->communicator, ++rank->splits), (uint32_t)color) | 1;
}

/* Those who stay call it, and know nothing of each other but who does not. */
uint64_t communicator_of_shrink(ncclComm_t parent, const int *excluded, int count) {
    const struct rank *rank = find(parent);
    if (!rank) return communicator_unlike_any();
    uint64_t sum = mix(rank->communicator, UINT64_MAX);
    for (int at = 0; at < count; at++) sum = mix(sum, (uint32_t)excluded[at]);
    return sum | 1;
}

uint64_t communicator_unlike_any(void) {
    static _Atomic uint64_t made;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t sum = mix(atomic_fetch_add(&made, 1), (uint64_t)now.tv_sec << 30 ^ (uint64_t)now.tv_nsec);
    return mix(mix(sum, (uint64_t)syscall(SYS_gettid)), (uint64_t)(uintptr_t)&now) | 1;
}

/* ---- making ---- */

struct newcomer communicators_announce(uint64_t communicator, uint32_t ranks_, uint32_t rank) {
    struct newcomer newcomer = {.communicator = communicator, .ranks = ranks_, .rank = rank, .entry = -1};
    struct gate *gate = gate_here();
    if (!gate) return newcomer;
    lock_take(&lock);
    newcomer.entry = gate_open(gate, communicator, GATE_COLLECTIVE, ranks_, rank, 0);
    lock_drop(&lock);
    return newcomer;
}

static void ask_nccl(struct newcomer *newcomer, ncclComm_t comm) {
    int count = 0, rank = 0;
    if (newcomer->ranks || REAL(ncclCommCount)(comm, &count) || REAL(ncclCommUserRank)(comm, &rank)) return;
    newcomer->ranks = (uint32_t)count;
    newcomer->rank = (uint32_t)rank;
    struct gate *gate = gate_here();
    if (gate && newcomer->entry >= 0) gate_describe(gate, newcomer->entry, newcomer->ranks, newcomer->rank);
}

/* The lock is held. */
static struct rank *put(const struct newcomer *newcomer, ncclComm_t comm) {
    for (size_t at = place_of(comm), tries = 0; tries < RANKS; at = (at + 1) % RANKS, tries++) {
        struct rank *rank = &ranks[at];
        ncclComm_t found = atomic_load(&rank->comm);
        if (found && found != FREED && found != comm) continue;
        free(rank->pairs);
        rank->communicator = newcomer->communicator;
        rank->ranks = newcomer->ranks;
        rank->rank = newcomer->rank;
        rank->entry = newcomer->entry;
        rank->splits = 0;
        rank->pairs = NULL;
        atomic_store_explicit(&rank->comm, comm, memory_order_release);
        return rank;
    }
    return NULL;
}

static void join(const struct newcomer *newcomer, ncclComm_t made) {
    struct newcomer whole = *newcomer;
    ask_nccl(&whole, made);
    lock_take(&lock);
    put(&whole, made);
    lock_drop(&lock);
}

static void keep(struct expected **list, const struct newcomer *newcomer, ncclComm_t *where) {
    struct expected *made = malloc(sizeof *made);
    if (!made) return;
    *made = (struct expected){.newcomer = *newcomer, .where = where};
    lock_take(&lock);
    while (*list) list = &(*list)->next;
    *list = made;
    lock_drop(&lock);
}

void communicators_made(const struct newcomer *newcomer, ncclComm_t *where, int result, bool grouped) {
    struct gate *gate = gate_here();
    if (result != ncclSuccess && result != ncclInProgress) {
        if (gate && newcomer->entry >= 0) gate_leave(gate, newcomer->entry);
    } else if (grouped) {
        keep(&of_group, newcomer, where);
    } else if (*where) {
        join(newcomer, *where);
    } else {
        keep(&expected, newcomer, NULL);
    }
}

void communicators_group_ended(int result) {
    for (struct expected *made; (made = of_group); free(made)) {
        of_group = made->next;
        communicators_made(&made->newcomer, made->where, result, false);
    }
}

/* An unknown handle: one that was expected, or of a communicator whose making was not seen. */
__attribute__((cold, noinline)) static struct rank *meet(struct gate *gate, ncclComm_t comm) {
    struct newcomer newcomer = {.entry = -1}, seen;
    ask_nccl(&newcomer, comm);
    seen = newcomer;
    lock_take(&lock);
    struct rank *rank = find(comm);
    if (!rank) {
        struct expected **link = &expected;
        while (*link && (*link)->newcomer.ranks &&
               ((*link)->newcomer.ranks != seen.ranks || (*link)->newcomer.rank != seen.rank))
            link = &(*link)->next;
        struct expected *found = *link;
        if (found) {
            newcomer = found->newcomer;
            newcomer.ranks = seen.ranks;
            newcomer.rank = seen.rank;
            *link = found->next;
            free(found);
            if (newcomer.entry >= 0) gate_describe(gate, newcomer.entry, seen.ranks, seen.rank);
        } else {
            gate_unsee(gate, GATE_UNSEEN_IDENTITY);
            newcomer.communicator = communicator_unlike_any();
        }
        rank = put(&newcomer, comm);
    }
    lock_drop(&lock);
    return rank;
}

/* ---- leaving ---- */

void communicators_leave(ncclComm_t comm, bool freed) {
    struct gate *gate = gate_here();
    lock_take(&lock);
    struct rank *rank = comm ? find(comm) : NULL;
    if (rank && gate) {
        if (rank->entry >= 0) gate_leave(gate, rank->entry);
        for (uint32_t pair = 0; rank->pairs && pair < 2 * rank->ranks; pair++)
            if (rank->pairs[pair]) gate_leave(gate, rank->pairs[pair] - 1);
    }
    if (rank && freed) {
        free(rank->pairs);
        rank->pairs = NULL;
        atomic_store(&rank->comm, FREED);
    }
    lock_drop(&lock);
}

/* ---- finding ---- */

/* The entry of the rank's operations with this peer; −1: none. */
__attribute__((cold, noinline)) static int open_pair(struct gate *gate, struct rank *rank, enum gate_kind kind,
                                                     uint32_t peer) {
    lock_take(&lock);
    if (!rank->pairs) rank->pairs = calloc(2 * (size_t)rank->ranks, sizeof *rank->pairs);
    uint16_t *pair = rank->pairs ? &rank->pairs[2 * peer + (kind == GATE_SEND)] : NULL;
    if (pair && !*pair)
        *pair = (uint16_t)(gate_open(gate, rank->communicator, (uint16_t)kind, rank->ranks, rank->rank, peer) + 1);
    lock_drop(&lock);
    return pair ? *pair - 1 : -1;
}

__attribute__((cold, noinline)) static int open_rank(struct gate *gate, struct rank *rank) {
    lock_take(&lock);
    if (rank->entry < 0) rank->entry = gate_open(gate, rank->communicator, GATE_COLLECTIVE, rank->ranks, rank->rank, 0);
    lock_drop(&lock);
    return rank->entry;
}

bool communicators_step(struct gate *gate, ncclComm_t comm, enum gate_kind kind, int peer, struct gate_step *step) {
    struct rank *rank = comm ? find(comm) : NULL;
    if (!rank) {
        rank = comm && comm != FREED ? meet(gate, comm) : NULL;
        if (!rank) return false;
    }
    if (rank->ranks == 1) return false;
    int entry = rank->entry;
    if (kind == GATE_COLLECTIVE) {
        if (entry < 0) entry = open_rank(gate, rank);
    } else {
        if ((uint32_t)peer >= rank->ranks || (uint32_t)peer == rank->rank) return false;
        uint16_t pair = rank->pairs ? rank->pairs[2 * peer + (kind == GATE_SEND)] : 0;
        entry = pair ? pair - 1 : open_pair(gate, rank, kind, (uint32_t)peer);
    }
    if (entry < 0) return false;
    uint16_t serial = atomic_load_explicit(&gate->entry[entry].serial, memory_order_relaxed);
    *step = (struct gate_step){.entry = (uint16_t)entry, .serial = serial, .count = 1};
    return true;
}
