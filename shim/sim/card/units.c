#include "units.h"

#include "processes.h"

#include <sched.h>
#include <stdlib.h>

/* How long a short taker waits for others who are half-way and may yet give back: a frozen one must not hold it up. */
#define PATIENCE_US 20000

/* Gives back any `units` of this process's units; how many it had. */
static uint64_t put_back_any(unsigned gpu, uint64_t units) {
    _Atomic uint32_t *owner = card_owners(gpu);
    uint64_t given = 0;
    for (uint64_t unit = 0; unit < card->gpu[gpu].units && given < units; unit++) {
        uint32_t mine = card_self_id();
        if (atomic_load_explicit(&owner[unit], memory_order_relaxed) == mine)
            given += atomic_compare_exchange_strong(&owner[unit], &mine, 0);
    }
    return given;
}

static void put_back(unsigned gpu, uint64_t units, const uint32_t *taken) {
    _Atomic uint32_t *owner = card_owners(gpu);
    uint64_t elsewhere = 0;
    for (uint64_t i = 0; i < units; i++) {
        uint32_t mine = card_self_id();
        elsewhere += !atomic_compare_exchange_strong(&owner[taken[i]], &mine, 0);
    }
    /* It was away in between, and has others now: only their number matters. */
    if (elsewhere > 0) put_back_any(gpu, elsewhere);
}

/* One pass over the table, from where the last one ended. */
static uint64_t gather(unsigned gpu, uint64_t units, uint32_t *taken) {
    static _Atomic uint32_t next[CARD_GPUS];
    _Atomic uint32_t *owner = card_owners(gpu);
    uint64_t total = card->gpu[gpu].units, got = 0;
    uint32_t mine = card_self_id();
    uint64_t unit = atomic_load_explicit(&next[gpu], memory_order_relaxed) % total;
    for (uint64_t seen = 0; seen < total && got < units; seen++) {
        uint32_t nobody = 0;
        if (atomic_load_explicit(&owner[unit], memory_order_relaxed) == 0 &&
            atomic_compare_exchange_strong(&owner[unit], &nobody, mine))
            taken[got++] = (uint32_t)unit;
        if (++unit == total) unit = 0;
    }
    atomic_store_explicit(&next[gpu], (uint32_t)unit, memory_order_relaxed);
    return got;
}

static bool try_take(struct card_process *process, unsigned gpu, uint64_t units, uint32_t *taken) {
    atomic_fetch_add(&process->taking, 1);
    uint64_t got = gather(gpu, units, taken);
    if (got == units)
        atomic_fetch_add(&process->held[gpu], units);
    else
        put_back(gpu, got, taken);
    atomic_fetch_sub(&process->taking, 1);
    return got == units;
}

bool card_take(unsigned of, uint64_t units, uint32_t *taken) {
    unsigned gpu = card_here(of);
    struct card_process *process = card_self();
    if (units > card->gpu[gpu].units || process == NULL) return false;
    if (try_take(process, gpu, units, taken)) return true;
    card_look(true);
    /* Two who each gathered half of what is there would both fail, although one of them fits: the one that fails
     * tries again while others are half-way. The last try begins with nobody half-way, or after all patience: one that
     * was itself held up while it tried has another. */
    uint64_t begun = card_now_us();
    bool again;
    do {
        again = card_others_are_taking() && card_now_us() - begun < PATIENCE_US;
        if (try_take(process, gpu, units, taken)) return true;
        if (again) sched_yield();
    } while (again);
    return false;
}

void card_give(unsigned of, uint64_t units, const uint32_t *taken) {
    unsigned gpu = card_here(of);
    struct card_process *process = card_self();
    if (process == NULL) return;
    /* Counted down first: a look in between sees too much free for a moment, which taking then corrects. */
    atomic_fetch_sub(&process->held[gpu], units);
    put_back(gpu, units, taken);
}

uint64_t card_put_away(unsigned of) {
    unsigned gpu = card_here(of);
    struct card_process *process = card_self();
    return process == NULL ? 0 : put_back_any(gpu, atomic_exchange(&process->held[gpu], 0));
}

bool card_bring_back(unsigned gpu, uint64_t units) {
    uint32_t *taken = malloc(units * sizeof *taken);
    bool there = units == 0 || (taken != NULL && card_take(gpu, units, taken));
    free(taken);
    return there;
}
