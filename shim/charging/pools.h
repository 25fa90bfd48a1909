/* Which pool an allocation comes from. What a pool is charged: growth.h. */
#ifndef GPUSHARE_POOLS_H
#define GPUSHARE_POOLS_H

#include "cuda_abi.h"
#include "growth.h"

#include <stdbool.h>

/* The pool that the program's handle stands for; made known on the first use. NULL, and why in `*error`. */
struct pool *pools_find(CUmemoryPool handle, CUresult *error);

/* The pool that a stream-ordered allocation without a pool uses. */
struct pool *pools_of_stream(CUstream stream, CUresult *error);

/* The graphs of a device. */
struct pool *pools_of_graphs(CUdevice device, CUresult *error);

/* Makes a pool known that the driver has just made; slot NO_SLOT: not to be charged. False: no host memory. */
bool pools_add(CUmemoryPool handle, int slot);

/* The same for a pool that has been there: a thread that knew it first is right. NULL: no host memory. */
struct pool *pools_meet(CUmemoryPool handle, int slot);
bool pools_known(CUmemoryPool handle);

/* Before the driver destroys a pool: nothing asks about the handle from now on, which may stand for another pool as
 * soon as the driver has returned. NULL: the pool is not known. */
struct pool *pools_leave(CUmemoryPool handle);

/* After that: `destroyed`, or the driver has refused. */
void pools_left(struct pool *pool, bool destroyed);

/* Somebody chose another current pool. */
void pools_changed(void);

/* The primary context of a slot's GPU has ended: pools that the driver has emptied with it hold nothing any more. */
void pools_slot_gone(int slot);

#endif
