/* Communicators of NCCL: published before they are made, until they are left. */
#include "gate/passage.h"
#include "resolve.h"

#include <stdlib.h>

/* Makes one rank: `identity` says of which communicator. */
#define MAKE(where, identity, ranks, rank, call)                                                                       \
    struct passage passage;                                                                                            \
    if (!passage_enter(&passage)) return passage_end(&passage, call);                                                  \
    struct newcomer newcomer = communicators_announce(identity, (uint32_t)(ranks), (uint32_t)(rank));                  \
    int result = passage_end(&passage, call);                                                                          \
    communicators_made(&newcomer, where, result, passage_in_group());                                                  \
    return result

int ncclCommInitRank(ncclComm_t *made, int ranks, ncclUniqueId id, int rank) {
    MAKE(made, communicator_of(&id, 1), ranks, rank, REAL(ncclCommInitRank)(made, ranks, id, rank));
}

int ncclCommInitRankConfig(ncclComm_t *made, int ranks, ncclUniqueId id, int rank, void *config) {
    MAKE(made, communicator_of(&id, 1), ranks, rank, REAL(ncclCommInitRankConfig)(made, ranks, id, rank, config));
}

int ncclCommInitRankScalable(ncclComm_t *made, int ranks, int rank, int count, ncclUniqueId *ids, void *config) {
    MAKE(made, communicator_of(ids, (unsigned)count), ranks, rank,
         REAL(ncclCommInitRankScalable)(made, ranks, rank, count, ids, config));
}

int ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t *made, void *config) {
    uint64_t communicator = communicator_of_split(parent, color);
    if (color == NCCL_SPLIT_NOCOLOR) return REAL(ncclCommSplit)(parent, color, key, made, config);
    MAKE(made, communicator, 0, 0, REAL(ncclCommSplit)(parent, color, key, made, config));
}

int ncclCommShrink(ncclComm_t parent, int *excluded, int count, ncclComm_t *made, void *config, int flags) {
    MAKE(made, communicator_of_shrink(parent, excluded, count), 0, 0,
         REAL(ncclCommShrink)(parent, excluded, count, made, config, flags));
}

/* Ranks that come new and those that were there know no common name for it. */
int ncclCommGrow(ncclComm_t parent, int ranks, const ncclUniqueId *id, int rank, ncclComm_t *made, void *config) {
    struct gate *gate = gate_here();
    if (gate) gate_unsee(gate, GATE_UNSEEN_IDENTITY);
    MAKE(made, communicator_unlike_any(), 0, 0, REAL(ncclCommGrow)(parent, ranks, id, rank, made, config));
}

int ncclCommInitAll(ncclComm_t *made, int count, const int *devices) {
    struct passage passage;
    struct newcomer *newcomers = NULL;
    uint64_t communicator = communicator_unlike_any();
    bool outer = passage_enter(&passage);
    if (outer && count > 0) newcomers = calloc((size_t)count, sizeof *newcomers);
    for (int rank = 0; newcomers && rank < count; rank++)
        newcomers[rank] = communicators_announce(communicator, (uint32_t)count, (uint32_t)rank);
    int result = passage_end(&passage, REAL(ncclCommInitAll)(made, count, devices));
    for (int rank = 0; newcomers && rank < count; rank++)
        communicators_made(&newcomers[rank], &made[rank], result, passage_in_group());
    free(newcomers);
    return result;
}

/* ---- leaving ---- */

int ncclCommFinalize(ncclComm_t comm) {
    int result = REAL(ncclCommFinalize)(comm);
    communicators_leave(comm, false);
    return result;
}

int ncclCommRevoke(ncclComm_t comm, int flags) {
    communicators_leave(comm, false); /* first: who is held there would call NCCL with it */
    return REAL(ncclCommRevoke)(comm, flags);
}

/* Its handle may be another's as soon as NCCL has freed it. */
int ncclCommDestroy(ncclComm_t comm) {
    communicators_leave(comm, true);
    return REAL(ncclCommDestroy)(comm);
}

int ncclCommAbort(ncclComm_t comm) {
    communicators_leave(comm, true);
    return REAL(ncclCommAbort)(comm);
}
