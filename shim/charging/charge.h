/* Taking bytes from the lease before the driver is asked for memory, and giving them back after it has freed it. */
#ifndef GPUSHARE_CHARGE_H
#define GPUSHARE_CHARGE_H

#include "cuda_abi.h"
#include "wire.h"

#include <stdbool.h>

#define NO_SLOT (-1)
#define BLOCK ((uint64_t)2 << 20)

/* What an allocation of `bytes` takes from the card: the driver packs up to 1 MiB into shared blocks of 2 MiB, and
 * gives everything larger blocks of its own (measured: H200, driver 580). */
static inline uint64_t charge_of(uint64_t bytes) {
    if (bytes <= BLOCK / 2) return bytes;
    return bytes > UINT64_MAX - BLOCK ? UINT64_MAX : (bytes + BLOCK - 1) & ~(BLOCK - 1);
}

/* Opens the session. CUDA_SUCCESS, CUDA_ERROR_OUT_OF_MEMORY (no scheduler) or CUDA_ERROR_NOT_PERMITTED (refused). */
CUresult charge_open(void);

/* Takes bytes from the lease of a slot; waits if that is what the scheduler wants. CUDA_SUCCESS, or the error to
 * return to the program. */
CUresult charge_take(int slot, uint64_t bytes, enum wire_purpose purpose);

/* Takes bytes from the lease of a slot if it has them, for what is on the card already: never asks, never waits. */
bool charge_within(int slot, uint64_t bytes);

/* What the container may still ask for, by the scheduler's last word. */
uint64_t charge_claim(int slot);

void charge_give(int slot, uint64_t bytes);

/* `look` is called before the scheduler is asked for memory of a slot: it may find some that can be given back. */
void charge_look_first(void (*look)(int slot));

/* Somebody waits for memory of this slot's GPU. */
bool charge_pressure(int slot);

/* The card had no memory although the lease had, for the `attempt`th time in a row (from 0): waits a moment and
 * returns true if the driver should be asked again, false if enough has been tried. */
__attribute__((cold, noinline)) bool charge_again(unsigned attempt);

/* Calls the driver, again if the card is out of memory for a moment: CUresult, like the call. */
#define CHARGED_CALL(call) CHARGED_CALL_UNLESS(false, call)

/* The same; once only if `once`. */
#define CHARGED_CALL_UNLESS(once, call)                                                                                \
    __extension__({                                                                                                    \
        CUresult result_;                                                                                              \
        unsigned attempt_ = 0;                                                                                         \
        do result_ = (call);                                                                                           \
        while (result_ == CUDA_ERROR_OUT_OF_MEMORY && !(once) && charge_again(attempt_++));                            \
        result_;                                                                                                       \
    })

/* Ends a CHARGED_CALL that failed, after its charge was given back: tells the scheduler if the card had no memory for
 * `bytes` inside the lease. Returns `result`. */
__attribute__((cold, noinline)) CUresult charge_refused(int slot, uint64_t bytes, CUresult result);

#endif
