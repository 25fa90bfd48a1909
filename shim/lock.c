#include "lock.h"

#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <time.h>

#define SPINS 100
#define NAP_NS 20000

static void futex(_Atomic uint32_t *word, int operation, uint32_t value) {
    int saved = errno;
    syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
    errno = saved;
}

void word_wait(_Atomic uint32_t *word, uint32_t seen) { futex(word, FUTEX_WAIT, seen); }

void word_wake_all(_Atomic uint32_t *word) { futex(word, FUTEX_WAKE, INT_MAX); }

void sleep_ns(uint64_t ns) {
    int saved = errno;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    ns += (uint64_t)until.tv_nsec;
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    while (syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) < 0 && errno == EINTR) continue;
    errno = saved;
}

void lock_slowly(struct lock *lock) {
    while (atomic_exchange_explicit(&lock->word, 2, memory_order_acquire) != 0) word_wait(&lock->word, 2);
}

void unlock_slowly(struct lock *lock) { futex(&lock->word, FUTEX_WAKE, 1); }

void latch_slowly(struct latch *latch) {
    for (unsigned tries = 0; atomic_exchange_explicit(&latch->held, 1, memory_order_acquire); tries++) {
        while (tries++ < SPINS && atomic_load_explicit(&latch->held, memory_order_relaxed)) continue;
        if (tries >= SPINS) sleep_ns(NAP_NS);
    }
}
