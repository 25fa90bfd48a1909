#define _GNU_SOURCE
#include "charge.h"

#include "client.h"
#include "devices.h"
#include "hooks.h"
#include "pools.h"

#include <errno.h>
#include <stddef.h>
#include <time.h>

/* How long the card may say "out of memory" inside a lease before that is believed: a dead process's memory comes
 * back well within it. */
#define FIRST_PAUSE_MS 1
#define LONGEST_PAUSE_MS 64
#define MOST_ATTEMPTS 38 /* 1 + 2 + … + 64, then 64 each: about two seconds */

/* glibc's, also behind pthread_atfork; musl has the other. Neither is needed to load. */
__attribute__((weak)) int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *);
__attribute__((weak)) int pthread_atfork(void (*)(void), void (*)(void), void (*)(void));

/* A forked child is a process of its own: nothing that its parent holds is its own, and its parent's other threads,
 * whatever they were doing, are not there. */
static void forget_all(void) {
    client_forget();
    ledger_forget();
    devices_forget();
    pools_forget();
    virtual_forget();
    graphs_forget();
}

static void watch_forks(void) {
    static atomic_flag done = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&done)) return;
    if (__register_atfork)
        __register_atfork(NULL, NULL, forget_all, NULL);
    else if (pthread_atfork)
        pthread_atfork(NULL, NULL, forget_all);
}

CUresult charge_open(void) {
    if (client_page()) return CUDA_SUCCESS;
    watch_forks();
    int outcome = client_open();
    if (outcome == WIRE_OK) return CUDA_SUCCESS;
    return outcome == CLIENT_NO_SCHEDULER ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_NOT_PERMITTED;
}

static struct lease_slot *slot_at(int slot) { return &client_page()->slot[slot]; }

/* Away from the way of those that find headroom, as is all that is marked cold: after a driver call few of our
 * instructions are in the cache, and each line of them costs. */
__attribute__((cold, noinline)) static CUresult ask(int slot, uint64_t bytes, enum wire_purpose purpose) {
    if (bytes > INT64_MAX) return CUDA_ERROR_OUT_OF_MEMORY; /* no card has that; and nobody's counter would hold it */
    /* Pools give back at a synchronise, which nobody watches: that is looked for before anybody asks. */
    pools_look(slot);
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

bool charge_try(int slot, uint64_t bytes) { return lease_reserve(slot_at(slot), bytes); }

void charge_give(int slot, uint64_t bytes) {
    if (bytes && client_page() && lease_release(slot_at(slot), bytes)) client_released((unsigned)slot);
}

bool charge_pressure(int slot) { return atomic_load_explicit(&slot_at(slot)->pressure, memory_order_relaxed) != 0; }

bool charge_again(unsigned attempt) {
    if (attempt >= MOST_ATTEMPTS) return false;
    int saved = errno;
    long ms = attempt < 6 ? FIRST_PAUSE_MS << attempt : LONGEST_PAUSE_MS;
    struct timespec pause = {0, ms * 1000000};
    nanosleep(&pause, NULL);
    errno = saved;
    return true;
}

CUresult charge_refused(int slot, uint64_t bytes, CUresult result) {
    if (result == CUDA_ERROR_OUT_OF_MEMORY) client_physical((unsigned)slot, bytes);
    return result;
}

/* The driver gave out an address that we still had: it was freed in a way that we do not see. */
__attribute__((cold, noinline)) static void freed_unseen(const struct ledger_entry *entry) { charge_freed(entry); }

bool charge_note(const struct ledger_entry *entry) {
    struct ledger_entry replaced;
    if (!ledger_put(entry, &replaced)) return false;
    if (replaced.kind) freed_unseen(&replaced);
    return true;
}

void charge_freed(const struct ledger_entry *entry) {
    if (entry->pooled)
        pool_freed((struct pool *)(uintptr_t)entry->owner, entry->bytes);
    else
        charge_give(entry->slot, entry->bytes);
}

__attribute__((cold, noinline)) static CUresult not_freed(CUresult result, const struct ledger_entry *entry) {
    charge_note(entry);
    return result;
}

CUresult charge_end_free(CUresult result, bool known, const struct ledger_entry *entry) {
    if (!known) return result;
    if (result != CUDA_SUCCESS) return not_freed(result, entry);
    charge_freed(entry);
    return CUDA_SUCCESS;
}

struct gone {
    uint64_t context;
    int slot;
    uint64_t bytes;
};

static bool belongs(const struct ledger_entry *entry, void *context) {
    struct gone *gone = context;
    bool of_context = (entry->kind == LEDGER_POINTER && !entry->pooled) || entry->kind == LEDGER_ARRAY;
    if (!of_context || entry->owner != gone->context || entry->slot != gone->slot) return false;
    gone->bytes += entry->bytes;
    return true;
}

void charge_context_gone(CUcontext context, int slot) {
    struct gone gone = {.context = (uint64_t)(uintptr_t)context, .slot = slot};
    ledger_sweep(belongs, &gone);
    charge_give(slot, gone.bytes);
}
