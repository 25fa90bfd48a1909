/* Which slot of the lease page a device, and the calling thread's context, belong to. */
#ifndef GPUSHARE_DEVICES_H
#define GPUSHARE_DEVICES_H

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define DEVICES 64

/* Where the calling thread allocates. `owner` is the number of one of the program's own contexts (its address may be
 * another's as soon as it has ended), or 0 for the device's primary context and its parts (green contexts), which end
 * together. */
struct place {
    uint64_t owner;
    CUdevice device;
    int slot;
};

/* Opens the session if need be. The slot of a device, or NO_SLOT and why in `*error`: the device is none of this
 * container's, or there is no session. */
int devices_slot(CUdevice device, CUresult *error);

/* Where the calling thread allocates. CUDA_SUCCESS; or the driver's error if it has no context; or ours if the context
 * cannot be charged. */
__attribute__((noinline)) CUresult devices_here(struct place *place);

/* The same for a call that asks the driver next, which then says itself that there is no context. Costs two loads where
 * the process sees one GPU and has made no context of its own: then there is but one place. */
CUresult devices_to_allocate(struct place *place);

/* The program has made a context of its own. */
void devices_own_context(void);

int devices_visible(void);

/* Something that threads remember about contexts, streams or pools is no longer so. */
void devices_changed(void);

/* Streams that each context has of its own: NULL, the one for all threads, and the one for each. */
#define LAST_SPECIAL_STREAM 2

/* On one cache line, because every allocation reads it. */
extern struct devices_now {
    _Atomic uint64_t generation; /* how often that has happened */
    /* The one place there is, as long as nothing has changed since this generation; 0: there are several. */
    _Atomic uint64_t sole_generation;
    _Atomic int sole_slot;
    _Atomic bool several_contexts; /* on one GPU: the program has made one beside the primary one */
} devices_now __attribute__((aligned(64)));

/* Charges a device's primary context unless that is done already. */
CUresult devices_take_primary(CUdevice device);

/* The same for a thread that is about to make it, or to keep it. On CUDA_SUCCESS the thread has locked it, until
 * devices_unlock_primary: no other thread makes it, ends it or looks whether it has ended. */
CUresult devices_keep_primary(CUdevice device);
void devices_lock_primary(CUdevice device);
void devices_unlock_primary(CUdevice device);

/* Gives that charge back; the primary context is locked. */
void devices_give_primary(CUdevice device);
bool devices_primary_charged(CUdevice device);

#endif
