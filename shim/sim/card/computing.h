/* Computing time of the card, which the processes that have work share. See computing.c. */
#ifndef SIM_CARD_COMPUTING_H
#define SIM_CARD_COMPUTING_H

#include "card.h"

#define CARD_LOOK_NS 50000000ull /* how often it is looked whether those who have work still live */

static inline uint64_t card_least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* ---- giving work: queue.c. A place is one in what this process has given the GPU: 0 is always past. ---- */

/* Gives the GPU a kernel of this process that takes `ns` of a card of its own. Returns at once, or, with 1024 kernels
 * given already, when the first of them is done. The value is the place where this one is done. */
uint64_t card_compute(unsigned gpu, uint64_t ns);

/* Gives it a kernel that takes part in an operation of all ranks of a channel (channels.h). It occupies the GPU until
 * all have given theirs, and then for `ns`. */
uint64_t card_meet(unsigned gpu, unsigned channel, unsigned rank, uint64_t ns);

/* This rank waits for nobody in the channel any more: what it has given there is over. */
void card_leave(unsigned channel, unsigned rank);

/* The place where all that this process has given is done; 0 if it never gave anything. */
uint64_t card_given(unsigned gpu);

/* Whether the GPU has come so far; and sleeps until it has. False: `deadline_ns` (CLOCK_MONOTONIC; 0: none) came first.
 */
bool card_reached(unsigned gpu, uint64_t place);
bool card_wait(unsigned gpu, uint64_t place, uint64_t deadline_ns);

/* All is done, and the process goes on with this GPU on another card. */
void card_computes_on(unsigned gpu, unsigned from, unsigned to);

/* Sleeps until all is done that this process has given. */
void card_settle(unsigned gpu);

/* ---- what NVML tells: by periods of a sixth of a second ---- */

/* The GPU's clock, brought up to date. Every question below is about what was before it. */
union card_moment card_clock(unsigned gpu);

/* Moves a clock on to a time or to a reading, whichever is first; the ns that somebody computed. */
uint64_t card_walk(unsigned gpu, union card_moment *at, uint64_t until_ns, uint64_t until_ps);

/* The number of the last period that is over, and the end of one, CLOCK_MONOTONIC. */
uint64_t card_last_period(union card_moment now);
uint64_t card_period_end_ns(uint64_t period);

/* Per cent of a period in which the GPU computed, and each of `entries` processes for itself: these add up to the
 * first. Zeros: nothing is known of it. */
unsigned card_busy(unsigned gpu, uint64_t period, unsigned entries, unsigned *each);

/* What a process's kernels have had of the card, as ns on a card of their own. */
uint64_t card_had_ns(unsigned gpu, unsigned entry, union card_moment now);

#endif
