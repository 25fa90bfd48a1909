/* The lease page: one memory file (memfd) per process, written by that process and by the scheduler.
 *
 * It holds, per GPU, one number that decides: `headroom`, the bytes that the process may allocate without asking.
 * Everything else is display. Both sides change the headroom only by the functions below, each a single atomic
 * operation, so no lock is shared between processes and a process killed at any point leaves nothing locked.
 *
 * The scheduler keeps its own account of what it has granted: a page is never evidence against it. Whatever is read
 * from a page is clamped to the scheduler's own number by `at_most` arguments.
 *
 * The wake-up rule (no release is ever missed): the process adds headroom, then reads `pressure`; the scheduler sets
 * `pressure`, then takes headroom. All four are sequentially consistent, so at least one side sees the other.
 *
 * All sizes are bytes. No function allocates, blocks, or calls anything outside this file.
 */
#ifndef GPUSHARE_LEASE_H
#define GPUSHARE_LEASE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define LEASE_MAGIC 0x4c535047u /* "GPSL" */
#define LEASE_VERSION 1
#define LEASE_SLOTS 16
#define LEASE_PAGE_SIZE 4096
#define LEASE_UUID_SIZE 16

struct lease_slot {
    _Atomic uint64_t headroom;  /* leased and not used yet: the process subtracts to allocate */
    _Atomic uint64_t granted;   /* scheduler: leased to this process, headroom included */
    _Atomic uint64_t quota;     /* scheduler: the container's quota on this GPU */
    _Atomic uint64_t elsewhere; /* scheduler: used by the container's other processes on this GPU */
    _Atomic uint64_t context;   /* scheduler: what one context takes on this GPU; reserved before one is made */
    _Atomic uint64_t overhead;  /* process: what it has charged for contexts so far */
    _Atomic uint64_t peak;      /* process: the most it has used; the scheduler sets it back when it has looked */
    _Atomic uint32_t pressure;  /* scheduler: somebody waits for this GPU; say RELEASED when headroom grows */
    uint32_t reserved;
    uint8_t uuid[LEASE_UUID_SIZE]; /* scheduler, before the page is sent: the GPU, as cuDeviceGetUuid gives it */
    uint8_t padding[48];           /* one slot, two cache lines: GPUs do not disturb each other */
};

struct lease_page {
    uint32_t magic;
    uint16_t version;
    uint16_t slots; /* how many of `slot` are in use */
    uint8_t padding[120];
    struct lease_slot slot[LEASE_SLOTS];
};

/* ---- the process's side ---- */

/* Takes `bytes` out of the headroom; false, changing nothing, if there is less. */
bool lease_reserve(struct lease_slot *slot, uint64_t bytes);

/* Puts `bytes` back, after the real free has returned. True: somebody waits, send RELEASED. */
bool lease_release(struct lease_slot *slot, uint64_t bytes);

/* What this process uses: granted − headroom, never below zero. */
uint64_t lease_used(const struct lease_slot *slot);

/* What the whole container may still use: quota − used − elsewhere, never below zero. */
uint64_t lease_claim(const struct lease_slot *slot);

/* ---- the scheduler's side ---- */

/* Prepares a zeroed page for `slots` GPUs. False if there are more than LEASE_SLOTS. */
bool lease_page_init(struct lease_page *page, unsigned slots);

/* True if the page is one that this release wrote. */
bool lease_page_valid(const struct lease_page *page);

/* Takes back up to `at_most` bytes of headroom; returns how many it was. */
uint64_t lease_take_back(struct lease_slot *slot, uint64_t at_most);

/* Adds headroom. Set `granted` first: used = granted − headroom must never be seen below what is really used. */
void lease_extend(struct lease_slot *slot, uint64_t bytes);

#endif
