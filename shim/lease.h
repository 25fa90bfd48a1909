/* The lease page: one memory file (memfd) per process, written by that process and by the scheduler.
 *
 * Every word has one writer. Nothing in it has to be changed together with something else, so whoever dies, at whatever
 * instruction, leaves a page that is right: the next scheduler reads from it alone what the process holds.
 *
 * Per GPU, `taken` and `limit` decide. They are places on one scale, which begins at 0 and goes round as 64 bits do:
 *
 *   taken     the process: moves up by what it allocates without asking, down by what it frees
 *   limit     the scheduler: how far `taken` may go; headroom = limit - taken
 *   bound     the scheduler: the limit that it counts with. `limit` is below it only while bytes are taken back, and
 *             nobody else is given them until both are equal
 *   granted   the scheduler: the sum of what it has granted by message
 *   accepted  the process: the sum of what it has heard of that; granted - accepted is on its way, or was lost with
 *             a connection, and is sent again on the next
 *   measured  the scheduler: what the card shows beyond what the process has charged itself
 *
 *   used  = taken + granted + measured
 *   lease = bound + granted + measured
 *
 * What came by message never passed through the headroom, so nobody can race for it; once freed, it is headroom like
 * all else, and `taken` may well be below where it began. Only differences are compared, so it may be for ever.
 *
 * To allocate, the process moves `taken` by one compare-and-swap and looks at `limit` again (`lease_reserve`). To take
 * back, the scheduler lowers `limit` and looks at `taken` again (`lease_take_back`): a store, then a load of the
 * other's word, on both sides, all sequentially consistent, so at least one of them sees the other. If it is the
 * process, it moves `taken` down again and asks; if it is the scheduler, it leaves what is taken. No help from the
 * process is needed: it may be frozen between any two instructions. For that moment `taken` may be above `limit`, never
 * above a limit that was in force.
 *
 * A scheduler that takes over (`lease_settle`) closes the lease, looks what is taken, and sets the limit there, but
 * never above `bound`: what is taken beyond it is about to be undone, and may be somebody else's by now. Then used =
 * lease, whatever the last one was about to do. Each of a grant's and a measurement's steps changes one word, and
 * between any two of them the sum above is either that from before or counts headroom, which settling takes back.
 *
 * The scheduler keeps its own account of what it has granted: a page is never evidence against it. The program can
 * write to the whole page; what it writes over the scheduler's words shows, and what it writes into its own is held
 * against the card.
 *
 * The wake-up rule (no release is ever missed): the process moves `taken` down, then reads `pressure`; the scheduler
 * sets `pressure`, then looks at `taken`. All four are sequentially consistent, so at least one side sees the other.
 * (One who moves it down in `lease_reserve` asks, and is looked at then.)
 *
 * The peak: what a program holds is taken + accepted, and every most of it is followed by a free. So a free notes what
 * it was before, if that is more than `peak` has, or if the scheduler has seen what `peak` has: `look` is then the
 * number that stands beside it. Nothing that has not been seen is ever replaced by less, and nobody sets anything back.
 * The order is `accepted`, `taken`, `look`, `peak`: so nothing is noted that was never used, and nothing held is
 * missed.
 *
 * A move (`moving`, `inside`): a driver whose process is checkpointed does not survive that a thread of it asks whether
 * its streams are done. So the process counts who is about to ask, then looks at `moving`; the scheduler sets `moving`,
 * then looks how many are counted: at least one side sees the other.
 *
 * Sharing (`sharing`, `shared`): a driver takes memory that is shared between processes or cards out of them without a
 * word, and then cannot bring it back. So before a call that shares memory the process counts itself in `sharing`; if
 * it succeeds it notes the kind in `shared`, for good, and only then leaves the count. The scheduler reads `sharing`,
 * then `shared`: a call that it did not see in the first has its kind in the second. A call that begins later begins in
 * a locked process, and has not returned from the driver when the memory is moved.
 *
 * The gate, by which programs on several cards are stopped together, is in gate/gate.h.
 *
 * tests/shim/lease_model.py and test_moving_model.py have every interleaving and every death of these steps.
 * All sizes are bytes. No function allocates, blocks, or calls anything outside this file.
 */
#ifndef GPUSHARE_LEASE_H
#define GPUSHARE_LEASE_H

#include "gate/gate.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define LEASE_MAGIC 0x4c535047u /* "GPSL" */
#define LEASE_VERSION 3
#define LEASE_SLOTS 16
#define LEASE_PAGE_SIZE 36864
#define LEASE_UUID_SIZE 16
#define LEASE_PEAK_SHIFT 16

/* How memory is shared (`shared`). The first is of a call that is under way. */
enum lease_sharing {
    LEASE_SHARES_NOW = 1,
    LEASE_SHARES_EXPORTED = 2, /* cuMem handles, or the descriptor of an address range, for another process */
    LEASE_SHARES_IMPORTED = 4, /* another process's cuMem handles */
    LEASE_SHARES_IPC = 8,      /* legacy CUDA IPC: memory or events */
    LEASE_SHARES_POOL = 16,    /* a memory pool, exported or imported */
    LEASE_SHARES_PEER = 32,    /* access of one card to another's memory */
    LEASE_SHARES_MULTICAST = 64,
    LEASE_SHARES_EXTERNAL = 128, /* memory of a graphics API */
    LEASE_SHARES_HOST = 256,     /* a pool or a cuMem handle of host memory (not what cuMemHostAlloc gives) */
};

/* All that an allocation and its free touch is on the first cache line: each line that has to be fetched again costs
 * time, and threads of one process pass one line around rather than two. */
struct lease_slot {
    _Atomic uint64_t taken;     /* process */
    _Atomic uint64_t limit;     /* scheduler */
    _Atomic uint64_t quota;     /* scheduler: the container's quota on this GPU */
    _Atomic uint64_t elsewhere; /* scheduler: used by the container's other processes on this GPU */
    _Atomic uint64_t accepted;  /* process */
    _Atomic uint64_t overhead;  /* process: what it has charged for contexts so far */
    _Atomic uint64_t peak;      /* process: the most it has held, above LEASE_PEAK_SHIFT bits of the note's number */
    _Atomic uint32_t pressure;  /* scheduler: somebody waits for this GPU; say RELEASED when headroom grows */
    _Atomic uint16_t look;      /* scheduler: the number of the note that it has seen */
    uint8_t unused[2];
    uint8_t uuid[LEASE_UUID_SIZE]; /* scheduler, before the page is sent: the GPU, as cuDeviceGetUuid gives it */
    _Atomic uint64_t granted;      /* scheduler */
    _Atomic uint64_t context;      /* scheduler: what one context takes on this GPU; reserved before one is made */
    _Atomic uint64_t measured;     /* scheduler */
    _Atomic uint64_t waiting;      /* scheduler: since when the container waits, monotonic ns; 0: it does not */
    _Atomic uint64_t bound;        /* scheduler */
    uint8_t padding[8];            /* one slot, two cache lines: GPUs do not disturb each other */
};

struct lease_page {
    uint32_t magic;
    uint16_t version;
    uint16_t slots; /* how many of `slot` are in use */
    uint8_t padding[56];
    _Atomic uint32_t inside,  /* process: threads that ask whether their streams are done */
        moving;               /* scheduler: its memory leaves the cards, or is not back; nobody asks */
    _Atomic uint32_t sharing, /* process: threads in a call that may share memory */
        shared;               /* process: how it has shared memory so far, enum lease_sharing */
    uint8_t unused[48];
    struct lease_slot slot[LEASE_SLOTS];
    struct gate gate; /* gate.h */
};

/* ---- the process's side ---- */

/* Takes `bytes` out of the headroom; false, with nothing taken, if there is less: ask for them. */
bool lease_reserve(struct lease_slot *slot, uint64_t bytes);

/* Puts `bytes` back, after the real free has returned. True: somebody waits, send RELEASED. */
bool lease_release(struct lease_slot *slot, uint64_t bytes);

/* Notes that `bytes` granted by message have been heard of, before anything can be done with them. */
void lease_accept(struct lease_slot *slot, uint64_t bytes);

/* This thread is about to ask whether a stream is done. False: not now, and it is not counted; try again later. */
bool lease_enter(struct lease_page *page);

/* It has its answer. */
void lease_leave(struct lease_page *page);

/* This thread is about to share memory. */
void lease_share(struct lease_page *page);

/* It has (`how`), or has not (0). */
void lease_shares(struct lease_page *page, uint32_t how);

/* What this process uses, never below zero. */
uint64_t lease_used(const struct lease_slot *slot);

/* What the whole container may still use: quota − used − elsewhere, never below zero. */
uint64_t lease_claim(const struct lease_slot *slot);

/* ---- the scheduler's side: of one thread ---- */

/* Prepares a zeroed page for `slots` GPUs. False if there are more than LEASE_SLOTS. */
bool lease_page_init(struct lease_page *page, unsigned slots);

/* True if the page has this version. */
bool lease_page_valid(const struct lease_page *page);

/* Its memory is about to be moved (`moving`), or is back and it runs. */
void lease_hold(struct lease_page *page, bool moving);

/* How many threads ask, by the process's own word. */
uint32_t lease_inside(const struct lease_page *page);

/* How the process shares memory, by its own word: enum lease_sharing, 0 if it does not. */
uint32_t lease_shared(const struct lease_page *page);

/* What the process may take without asking, never below zero. */
uint64_t lease_headroom(const struct lease_slot *slot);

/* The headroom as well; UINT64_MAX if the scheduler's words do not say any more that `leased` bytes are leased, or if
 * the process claims more headroom than that: somebody has written over them. */
uint64_t lease_look(const struct lease_slot *slot, uint64_t leased);

/* Takes back up to `at_most` bytes of headroom; returns how many it was. */
uint64_t lease_take_back(struct lease_slot *slot, uint64_t at_most);

/* Adds headroom. */
void lease_extend(struct lease_slot *slot, uint64_t bytes);

/* Of a page that an earlier scheduler has left, at whatever step: takes all headroom back. */
void lease_settle(struct lease_slot *slot);

/* The process allocates nothing more by itself. */
void lease_close(struct lease_slot *slot);

/* The most used that frees have noted since the last look, by the process's own word; 0 if none has. */
uint64_t lease_take_peak(struct lease_slot *slot);

#endif
