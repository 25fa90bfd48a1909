/* Computing time of the card, which the processes that have work share. See computing.c. */
#ifndef SIM_CARD_COMPUTING_H
#define SIM_CARD_COMPUTING_H

#include "card.h"

/* Gives the GPU a kernel of this process that takes `ns` of a card of its own. Returns at once, or, with 1024 kernels
 * given already, when the first of them is done. The value is the clock's reading when this one will be: 0 is always
 * past. */
uint64_t card_compute(unsigned gpu, uint64_t ns);

/* The reading at which all that this process has given will be done; 0 if it never gave anything. */
uint64_t card_given(unsigned gpu);

/* Whether the GPU's clock has come so far; and sleeps until it has. False: `deadline_ns` (CLOCK_MONOTONIC; 0: none)
 * came first. */
bool card_reached(unsigned gpu, uint64_t reading);
bool card_wait(unsigned gpu, uint64_t reading, uint64_t deadline_ns);

/* Sleeps until all is done that this process has given. */
void card_settle(unsigned gpu);

/* ---- what NVML tells: by periods of a sixth of a second ---- */

/* The GPU's clock, brought up to date. Every question below is about what was before it. */
union card_moment card_clock(unsigned gpu);

/* The number of the last period that is over, and the end of one, CLOCK_MONOTONIC. */
uint64_t card_last_period(union card_moment now);
uint64_t card_period_end_ns(uint64_t period);

/* Per cent of a period in which the GPU computed, and each of `entries` processes for itself: these add up to the
 * first. Zeros: nothing is known of it. */
unsigned card_busy(unsigned gpu, uint64_t period, unsigned entries, unsigned *each);

/* What a process's kernels have had of the card, as ns on a card of their own. */
uint64_t card_had_ns(unsigned gpu, unsigned entry, union card_moment now);

#endif
