/* The simulated libnccl.so.2: what its parts share. Types and numbers are those of NCCL 2.28. */
#ifndef SIM_NCCL_H
#define SIM_NCCL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

typedef int ncclResult;
enum {
    NCCL_SUCCESS = 0,
    NCCL_CUDA_ERROR = 1,
    NCCL_SYSTEM_ERROR = 2,
    NCCL_INVALID_ARGUMENT = 4,
    NCCL_INVALID_USAGE = 5,
    NCCL_IN_PROGRESS = 7,
};

#define NCCL_NO_COLOR (-1)

typedef struct {
    unsigned char bytes[128];
} ncclUniqueId;

struct config { /* the beginning of ncclConfig_t */
    size_t size;
    unsigned magic, version;
    int blocking; /* 0: a call returns before all ranks have come */
};

typedef void *CUstream;

/* One rank of a communicator. */
typedef struct comm {
    uint64_t key;
    unsigned ranks, rank;
    int channel, device;
    void *context;
    unsigned splits;
    bool left;
    struct job *pending; /* not blocking: what is not finished yet */
    int *pairs;          /* by peer, sends and receives: its channel + 1 */
} *ncclComm;

/* ---- driver.c: the simulated driver's calls ---- */

#define DRIVER_CALLS(X)                                                                                                \
    X(int, sim_channel_join, (uint64_t key, unsigned ranks))                                                           \
    X(void, sim_channel_leave, (unsigned channel))                                                                     \
    X(bool, sim_channel_whole, (unsigned channel, bool wait))                                                          \
    X(uint64_t, sim_channel_word, (unsigned channel, unsigned rank))                                                   \
    X(void, sim_channel_write, (unsigned channel, unsigned rank, uint64_t value))                                      \
    X(bool, sim_channel_reached, (unsigned channel, uint64_t number, bool wait))                                       \
    X(void, sim_channel_abort, (unsigned channel, unsigned rank))                                                      \
    X(int, sim_collective, (CUstream stream, unsigned channel, unsigned rank, uint64_t ns))                            \
    X(int, cuInit, (unsigned flags))                                                                                   \
    X(int, cuCtxGetCurrent, (void **context))                                                                          \
    X(int, cuCtxSetCurrent, (void *context))                                                                           \
    X(int, cuCtxGetDevice, (int *device))                                                                              \
    X(int, cuDevicePrimaryCtxRetain, (void **context, int device))                                                     \
    X(int, cuMemCreate, (unsigned long long *handle, size_t bytes, const void *properties, unsigned long long flags))  \
    X(int, cuMemExportToShareableHandle,                                                                               \
      (void *shareable, unsigned long long handle, int type, unsigned long long flags))

struct driver {
#define FIELD(type, name, parameters) type(*name) parameters;
    DRIVER_CALLS(FIELD)
#undef FIELD
};

const struct driver *driver(void);

/* ---- group.c ---- */

/* Something that ends when the outermost group does. `finish` returns whether it is finished; `wait`: once it is. */
struct job {
    struct job *next;
    bool (*finish)(struct job *job, bool wait);
    ncclComm comm;
    CUstream stream;
    ncclComm *result; /* of a split: where the child goes */
    int channel, color, key;
    unsigned rank;
    uint64_t ns;
    ncclResult outcome;
};

/* Finishes a copy of the job: now, or at the end of the group. */
ncclResult job_do(const struct job *job);

/* ---- channels.c ---- */

uint64_t mix(uint64_t key, uint64_t with);

/* The channel of what this rank sends to a peer, or receives from it; −1: there is no room. */
int pair_channel(ncclComm comm, unsigned peer, bool sends);

#endif
