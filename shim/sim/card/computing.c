/* A card's computing time, shared out without a lock.
 *
 * A process gives kernels, which are done one after the other. While n processes have work, each gets on at 1/n of the
 * speed it has alone, less what a driver loses by going from one to the other. So one clock will do for a GPU: it goes
 * by as much as each of those who have work gets done, and a process publishes one number, the reading at which all it
 * has given will be done. Who still has work, and therefore how fast the clock goes and when somebody's work will be
 * done, follows from these numbers: nobody has to take part for it to go on.
 *
 * Whoever wants to know the clock brings it up to date: 16 bytes, the reading and when it was so, swapped in one
 * instruction. A process that begins to have work does so first, so that what was before is settled. One that is killed
 * or frozen at any instruction holds up nobody: what a frozen one has given is computed, what a dead one has is
 * dropped.
 *
 * Who brought the clock past the end of a period notes down what everybody has had by then. */
#include "computing.h"

#include "processes.h"

#define PERIOD_NS (1000000000ull / 6)
#define REBOOTED_NS 1000000000ull /* a clock further ahead than this is of a machine that was started again since */

/* ps by which each of `n` gets on in 1 ns. Two at once got 92 %, three 90 % of what one alone does, on an H100. */
static uint64_t speed(unsigned n) {
    static const uint64_t few[] = {0, 1000, 460, 300};
    return n < 4 ? few[n] : n < 900 ? 900 / n : 1;
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static struct card_computing *computing(unsigned gpu, unsigned entry) { return &card->process[entry].computing[gpu]; }

/* How many have work at this reading; `next`: the reading at which the first of them has none. */
static unsigned at_work(unsigned gpu, uint64_t reading, uint64_t *next) {
    unsigned entries = atomic_load(&card->entries), found = 0;
    *next = UINT64_MAX;
    for (unsigned entry = 0; entry < entries; entry++) {
        uint64_t end = atomic_load(&computing(gpu, entry)->end);
        if (end <= reading || !card_lives(entry)) continue;
        *next = card_least(*next, end);
        found++;
    }
    return found;
}

uint64_t card_walk(unsigned gpu, union card_moment *at, uint64_t until_ns, uint64_t until_ps) {
    uint64_t busy = 0, next;
    while (at->ns < until_ns && at->ps < until_ps) {
        unsigned n = at_work(gpu, at->ps, &next);
        if (n == 0) {
            at->ns = until_ns;
            break;
        }
        next = card_least(next, until_ps);
        uint64_t takes = (next - at->ps + speed(n) - 1) / speed(n), step = card_least(takes, until_ns - at->ns);
        at->ps = step < takes ? at->ps + step * speed(n) : next;
        at->ns += step;
        busy += step;
    }
    return busy;
}

static void note(unsigned gpu, union card_moment at) {
    uint64_t period = at.ns / PERIOD_NS;
    unsigned entries = atomic_load(&card->entries), slot = period % CARD_SAMPLES;
    struct card_sample *sample = &card->gpu[gpu].sample[slot];
    atomic_store(&sample->had, atomic_load(&card->gpu[gpu].busy_ns));
    atomic_store(&sample->period, period);
    for (unsigned entry = 0; entry < entries; entry++) {
        uint64_t end = atomic_load(&computing(gpu, entry)->end);
        /* What a dead one has not got done by now is dropped; what it has is reported. */
        if (end > at.ps && !card_lives(entry)) atomic_compare_exchange_strong(&computing(gpu, entry)->end, &end, at.ps);
        sample = &computing(gpu, entry)->sample[slot];
        atomic_store(&sample->had, card_had_ns(gpu, entry, at));
        atomic_store(&sample->period, period);
    }
}

union card_moment card_clock(unsigned gpu) {
    union card_moment *clock = &card->gpu[gpu].clock;
    if (card_now_us() - atomic_load(&card->looked_us) > CARD_LOOK_NS / 1000) card_look(true);
    for (;;) {
        union card_moment old = {.both = __sync_val_compare_and_swap(&clock->both, 0, 0)}, new = old;
        uint64_t now = now_ns(), busy = 0;
        if (now <= old.ns && old.ns - now < REBOOTED_NS) return old;
        if (now <= old.ns) {
            new.ns = now;
        } else {
            /* From period to period, those left out of which nobody asks any more. */
            uint64_t period = old.ns / PERIOD_NS + 1, newest = now / PERIOD_NS;
            if (newest > period + CARD_SAMPLES) period = newest - CARD_SAMPLES;
            busy = card_walk(gpu, &new, card_least(now, period * PERIOD_NS), UINT64_MAX);
        }
        if (!__sync_bool_compare_and_swap(&clock->both, old.both, new.both)) continue;
        atomic_fetch_add(&card->gpu[gpu].busy_ns, busy);
        if (new.ns % PERIOD_NS == 0) note(gpu, new);
        if (new.ns >= now) return new;
    }
}

/* ---- telling ---- */

uint64_t card_last_period(union card_moment now) { return now.ns / PERIOD_NS; }

uint64_t card_period_end_ns(uint64_t period) { return period * PERIOD_NS; }

uint64_t card_had_ns(unsigned gpu, unsigned entry, union card_moment now) {
    const struct card_computing *theirs = computing(gpu, entry);
    return (card_least(atomic_load(&theirs->end), now.ps) - atomic_load(&theirs->rested)) / 1000;
}

/* By how much it grew from the end of the period before to that of this one. Where nothing was noted at the former,
 * as before the process was there, the note that it would have replaced tells how much it was. */
static uint64_t grown(const struct card_sample *samples, uint64_t period) {
    const struct card_sample *now = &samples[period % CARD_SAMPLES], *before = &samples[(period - 1) % CARD_SAMPLES];
    if (atomic_load(&now->period) != period || atomic_load(&before->period) > period) return 0;
    uint64_t had = atomic_load(&now->had), had_before = atomic_load(&before->had);
    return had > had_before ? had - had_before : 0;
}

unsigned card_busy(unsigned gpu, uint64_t period, unsigned entries, unsigned *each) {
    uint64_t busy = card_least((100 * grown(card->gpu[gpu].sample, period) + PERIOD_NS / 2) / PERIOD_NS, 100), sum = 0;
    for (unsigned entry = 0; entry < entries; entry++) sum += grown(computing(gpu, entry)->sample, period);
    for (unsigned entry = 0; entry < entries; entry++)
        each[entry] = sum > 0 ? (unsigned)((busy * grown(computing(gpu, entry)->sample, period) + sum / 2) / sum) : 0;
    return (unsigned)busy;
}
