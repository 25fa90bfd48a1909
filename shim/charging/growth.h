/* Memory pools, and what graphs take: both reserve from the card in large pieces, keep what is freed, and are charged
 * by what they have reserved.
 *
 * A pool may grow although the sum of its free pieces is larger than the allocation: no piece may be large enough. The
 * driver does not tell this in advance. So each allocation belongs to one of three kinds:
 *
 *   certain   It fits into a piece that is known to be free: this thread has freed so much on the same stream, and no
 *             other thread has allocated from the pool since, or is about to. No message and no driver call: a few
 *             additions.
 *   reserved  A growth of the allocation's size, in whole POOL_PIECEs, is taken from the lease before the call. After
 *             it the driver is asked what the pool has reserved, and what did not grow goes back. Where the sum does
 *             not fit the pool must grow: then the shim asks the scheduler for it, and waits.
 *   tried     The sum fits, but the lease has no room for a growth. To wait would suspend a program that most likely
 *             needs nothing, so the driver is called first. If the pool has grown by more than the lease has, the
 *             allocation is undone, its growth is asked for as for `reserved`, and the call is made again.
 *
 * The shim never waits for bytes that are on the card already: the scheduler could not count them, so that two
 * containers could wait for each other. What cannot be undone (a graph has run, a stream is busy) is charged at the
 * next call from the pool for which the lease has room, and found by the scheduler's measurement until then; what a
 * thread takes unpaid from a pool that another one is destroying, by that measurement alone.
 *
 * The cost: one driver call (cuMemPoolGetAttribute, 0.2 us) for each allocation that is not certain; and for as long as
 * a tried call takes the pool may have one growth more than is charged, for each thread that tries. How often a pool
 * grows although the sum would fit (an H100 with driver 580.159, 6,000 allocations and frees at random, up to 4 GiB
 * living): at 4 of 3,006 allocations of up to 4 MiB, 37 of 3,006 of up to 40 MiB, 17 of 2,988 of up to 300 MiB.
 */
#ifndef GPUSHARE_GROWTH_H
#define GPUSHARE_GROWTH_H

#include "cuda_abi.h"
#include "lock.h"

#include <stdatomic.h>
#include <stdbool.h>

#define POOL_PIECE ((uint64_t)32 << 20) /* what a pool grows by (measured: driver 580) */
#define CHECK_EVERY ((uint64_t)256 << 20)
#define NO_VISIT UINT64_MAX /* no thread's: the first has the number 1, and a thread before its first has 0 */

/* Never freed, used again once dead and empty: a thread may be about to look at one. */
struct pool {
    struct pool *next;
    CUmemoryPool handle; /* NULL: the graphs of `device` */
    CUdevice device;
    int slot;                  /* NO_SLOT: on the host, or imported: not charged */
    _Atomic bool leaving;      /* being destroyed: the handle may stand for another pool already */
    _Atomic bool dead;         /* destroyed by the program; lives on until its allocations are freed */
    _Atomic uint64_t reserved; /* what the driver was last seen to have reserved */
    /* The last one, of a thread whose allocations since then are the only ones: it alone may know of a free piece. */
    _Atomic uint64_t visit;
    struct lock lock; /* the two below */
    uint64_t charged; /* taken from the lease: at least `reserved`, at most `pending` more */
    uint64_t pending; /* taken for growth that may be under way */
    /* Apart from the rest, which no certain call writes: these each call does. */
    uint8_t before_live[64];
    _Atomic uint64_t live;  /* bytes of living allocations */
    _Atomic uint32_t calls; /* under way: none is certain beside another */
    uint8_t after_live[64];
};

/* One allocation, or one run of a graph. Before the first pool_begin of a pool `turns` is to be 0. */
struct growth {
    uint64_t bytes; /* taken from the lease for it */
    uint64_t live;
    unsigned turns; /* how often it was undone */
    bool check;     /* pool_end has to ask the driver */
    bool tried;
    bool waited; /* the program may have chosen another pool meanwhile, or destroyed this one */
};

/* Before an allocation of `bytes` on a stream. CUDA_SUCCESS, or the error for the program. */
CUresult pool_begin(struct pool *pool, uint64_t bytes, CUstream stream, struct growth *growth);

/* The same for a graph that needs `bytes` while it runs. */
CUresult pool_begin_graph(struct pool *pool, uint64_t bytes, struct growth *growth);

/* After it, whether it succeeded or not. False: the pool has grown beyond what is charged; give the allocation back. */
bool pool_end(struct pool *pool, struct growth *growth, bool succeeded);

/* The CUresult of an allocation whose pool is another one by now: it was not made. */
#define POOL_IS_ANOTHER (-1)

/* An allocation failed, was given back, or was not made. True: begin it again; in the same pool it waits for what it
 * needs. */
bool pool_again(struct growth *growth, CUresult result);

/* What is charged for a pool, in bytes. */
uint64_t pool_charged(struct pool *pool);

/* After a free on a stream. */
void pool_freed(struct pool *pool, uint64_t bytes, CUstream stream);

/* Charges what is reserved now, after something that may have made it less. False: more is on the card than the lease
 * has. */
bool pool_look(struct pool *pool);

#endif
