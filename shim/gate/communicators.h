/* This process's ranks: which communicators it is in, and where in the gate their operations are counted. */
#ifndef GPUSHARE_GATE_COMMUNICATORS_H
#define GPUSHARE_GATE_COMMUNICATORS_H

#include "gate.h"
#include "nccl_abi.h"

/* A rank that is about to be made. Its communicator is the same number for all its ranks, on whichever host. */
struct newcomer {
    uint64_t communicator;
    uint32_t ranks, rank; /* ranks 0: NCCL will say */
    int entry;            /* published; −1: not */
};

/* The identities of communicators. */
uint64_t communicator_of(const ncclUniqueId *ids, unsigned count);
uint64_t communicator_of_split(ncclComm_t parent, int color);
uint64_t communicator_of_shrink(ncclComm_t parent, const int *excluded, int count);
uint64_t communicator_unlike_any(void);

/* Publishes a rank, before NCCL makes it. */
struct newcomer communicators_announce(uint64_t communicator, uint32_t ranks, uint32_t rank);

/* NCCL has returned `result`, and the handle is, or will be, at `where`; `grouped`: not before the group ends. */
void communicators_made(const struct newcomer *newcomer, ncclComm_t *where, int result, bool grouped);

/* This thread's group has ended with `result`. */
void communicators_group_ended(int result);

/* The rank begins nothing more; `freed`: its handle may be another's from now on. */
void communicators_leave(ncclComm_t comm, bool freed);

/* Where an operation of this rank is counted. False: it is not, as there is nobody to wait for, or no room. */
bool communicators_step(struct gate *gate, ncclComm_t comm, enum gate_kind kind, int peer, struct gate_step *step);

/* This process's gate, or NULL while there is no session. */
struct gate *gate_here(void);

#endif
