#define _GNU_SOURCE
#include "charge.h"

#include "client.h"
#include "fork.h"
#include "lock.h"

/* How long the card may say "out of memory" inside a lease before that is believed: a dead process's memory comes
 * back well within it. */
#define FIRST_PAUSE_MS 1
#define LONGEST_PAUSE_MS 64
#define MOST_ATTEMPTS 38 /* 1 + 2 + … + 64, then 64 each: about two seconds */

/* What looks for memory to give back before the scheduler is asked for more. */
static void (*_Atomic look_first)(int slot);

CUresult charge_open(void) {
    if (client_page()) return CUDA_SUCCESS;
    fork_watch();
    int outcome = client_open();
    if (outcome == WIRE_OK) return CUDA_SUCCESS;
    return outcome == CLIENT_NO_SCHEDULER ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_NOT_PERMITTED;
}

static struct lease_slot *slot_at(int slot) { return &client_page()->slot[slot]; }

/* The slow path, kept out of the code that runs when there is headroom (as everything marked cold is): a driver call
 * leaves few of our instructions in the cache, and each cache line that has to be fetched again costs time. */
__attribute__((cold, noinline)) static CUresult ask(int slot, uint64_t bytes, enum wire_purpose purpose) {
    if (bytes > INT64_MAX) return CUDA_ERROR_OUT_OF_MEMORY; /* no card has that; and nobody's counter would hold it */
    void (*look)(int) = atomic_load(&look_first);
    if (look) look(slot);
    if (lease_reserve(slot_at(slot), bytes)) return CUDA_SUCCESS;
    switch (client_need((unsigned)slot, bytes, purpose)) {
        case WIRE_OK:
            return CUDA_SUCCESS;
        case WIRE_BAD_VERSION:
        case WIRE_NOT_RUNNING:
            return CUDA_ERROR_NOT_PERMITTED;
        default:
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
}

CUresult charge_take(int slot, uint64_t bytes, enum wire_purpose purpose) {
    return lease_reserve(slot_at(slot), bytes) ? CUDA_SUCCESS : ask(slot, bytes, purpose);
}

bool charge_within(int slot, uint64_t bytes) { return lease_reserve(slot_at(slot), bytes); }

uint64_t charge_claim(int slot) { return lease_claim(slot_at(slot)); }

void charge_look_first(void (*look)(int slot)) { atomic_store(&look_first, look); }

void charge_give(int slot, uint64_t bytes) {
    struct lease_page *page = client_page();
    if (page && lease_release(&page->slot[slot], bytes)) client_released((unsigned)slot);
}

bool charge_pressure(int slot) { return atomic_load_explicit(&slot_at(slot)->pressure, memory_order_relaxed) != 0; }

bool charge_again(unsigned attempt) {
    if (attempt >= MOST_ATTEMPTS) return false;
    sleep_ns((attempt < 6 ? FIRST_PAUSE_MS << attempt : LONGEST_PAUSE_MS) * UINT64_C(1000000));
    return true;
}

CUresult charge_refused(int slot, uint64_t bytes, CUresult result) {
    if (result == CUDA_ERROR_OUT_OF_MEMORY) client_physical((unsigned)slot, bytes);
    return result;
}
