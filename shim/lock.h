/* A lock of one word, and waiting for a word to change. Unlike pthread's it needs no library beside libc, can be made
 * new in a forked child, and never ends up half-initialised in a library that has no constructor. */
#ifndef GPUSHARE_LOCK_H
#define GPUSHARE_LOCK_H

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* 0: free, 1: held, 2: held and somebody may be asleep. */
struct lock {
    _Atomic uint32_t word;
};

/* Sleeps while *word == seen; may return early. Keeps errno. */
void word_wait(_Atomic uint32_t *word, uint32_t seen);
void word_wake_all(_Atomic uint32_t *word);
__attribute__((cold, noinline)) void lock_slowly(struct lock *lock);
__attribute__((cold, noinline)) void unlock_slowly(struct lock *lock);

static inline void lock_take(struct lock *lock) {
    uint32_t unheld = 0;
    if (!atomic_compare_exchange_strong_explicit(&lock->word, &unheld, 1, memory_order_acquire, memory_order_relaxed))
        lock_slowly(lock);
}

static inline void lock_drop(struct lock *lock) {
    if (atomic_exchange_explicit(&lock->word, 0, memory_order_release) == 2) unlock_slowly(lock);
}

/* Sleeps for so long, whatever signals come. Not a cancellation point: a thread that ends here would keep what it has
 * taken from the lease. Keeps errno. */
void sleep_ns(uint64_t ns);

/* For a few instructions at a time, on the path of every allocation: letting go of it is a plain store, half the cost
 * of the other. Who finds it held for long sleeps rather than spins, so that a holder of lower priority can go on. */
struct latch {
    _Atomic uint32_t held;
};

__attribute__((cold, noinline)) void latch_slowly(struct latch *latch);

static inline void latch_take(struct latch *latch) {
    if (atomic_exchange_explicit(&latch->held, 1, memory_order_acquire)) latch_slowly(latch);
}

static inline void latch_drop(struct latch *latch) { atomic_store_explicit(&latch->held, 0, memory_order_release); }

#endif
