/* Memory pools, and what graphs take: both reserve from the card in large pieces, keep what is freed, and are charged
 * by what they have reserved.
 *
 * The driver is asked for that number only when a pool may have grown or shrunk: when the living allocations would not
 * fit into what it was last seen to have, when somebody waits for memory, and once in CHECK_EVERY bytes of
 * a thread's allocations, since fragmentation can make a pool grow although the sum would fit. In between, an
 * allocation costs two additions.
 */
#ifndef GPUSHARE_POOLS_H
#define GPUSHARE_POOLS_H

#include "cuda_abi.h"
#include "lock.h"

#include <stdatomic.h>
#include <stdbool.h>

#define POOL_PIECE ((uint64_t)32 << 20) /* what a pool grows by (measured: driver 580) */
#define CHECK_EVERY ((uint64_t)256 << 20)

/* Never freed, used again once dead and empty: a thread may be about to look at one. */
struct pool {
    struct pool *next;
    CUmemoryPool handle; /* NULL: the graphs of `device` */
    CUdevice device;
    int slot;                  /* NO_SLOT: on the host, or imported: not charged */
    _Atomic bool dead;         /* destroyed by the program; lives on until its allocations are freed */
    _Atomic uint64_t reserved; /* what the driver was last seen to have reserved */
    struct lock lock;          /* the two below */
    uint64_t charged;          /* taken from the lease */
    uint64_t pending;          /* of that: for growth that is under way */
    /* Apart from the rest, which threads only read: this each of them writes. */
    uint8_t before_live[64];
    _Atomic uint64_t live; /* bytes of living allocations */
    uint8_t after_live[64];
};

/* The pool that the program's handle stands for; made known on the first use. NULL, and why in `*error`. */
struct pool *pools_find(CUmemoryPool handle, CUresult *error);

/* The pool that a stream-ordered allocation without a pool uses. */
struct pool *pools_of_stream(CUstream stream, CUresult *error);

/* The graphs of a device. */
struct pool *pools_of_graphs(CUdevice device, CUresult *error);

/* Makes a pool known; slot NO_SLOT: not to be charged. False: no host memory. */
bool pools_add(CUmemoryPool handle, int slot);
bool pools_known(CUmemoryPool handle);

/* The program has destroyed it. */
void pools_drop(CUmemoryPool handle);

/* Somebody chose another current pool. */
void pools_changed(void);

/* Before an allocation of `bytes`. `*growth` is what was taken from the lease for it, `*check` whether pool_done has to
 * look. CUDA_SUCCESS, or the error for the program. */
struct growth {
    uint64_t bytes, live;
    bool check;
};
CUresult pool_begin(struct pool *pool, uint64_t bytes, struct growth *growth);

/* The same for a graph that needs `bytes` while it runs. */
CUresult pool_begin_graph(struct pool *pool, uint64_t bytes, struct growth *growth);

/* After it, whether it succeeded or not. False: the pool has grown beyond what the container may have; give the
 * allocation back. */
bool pool_end(struct pool *pool, const struct growth *growth, bool succeeded);

/* After a free. */
void pool_freed(struct pool *pool, uint64_t bytes);

/* Charges what is reserved now, after something that may have made it less. */
void pool_look(struct pool *pool);

/* The primary context of a slot's GPU has ended: pools that the driver has emptied with it hold nothing any more. */
void pools_slot_gone(int slot);

#endif
