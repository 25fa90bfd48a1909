/* Making and leaving communicators. What a rank waits for here, it waits for on the processor. */
#include "nccl.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static uint64_t key_of(const ncclUniqueId *ids, unsigned count) {
    uint64_t key = count, word;
    for (unsigned at = 0; at < count * sizeof *ids / 8; at++) {
        memcpy(&word, (const char *)ids + 8 * at, 8);
        key = mix(key, word);
    }
    return key | 1;
}

/* As NCCL does, unless configured not to: memory for the other ranks, which a checkpoint cannot bring back. */
static void share_memory(void) {
    static const char *const off[] = {"NCCL_P2P_DISABLE=1", "NCCL_CUMEM_ENABLE=0", "NCCL_CUMEM_HOST_ENABLE=0"};
    unsigned found = 0;
    for (unsigned at = 0; at < 3; at++) {
        char name[32] = {0};
        const char *is = strchr(off[at], '=');
        memcpy(name, off[at], (size_t)(is - off[at]));
        const char *value = getenv(name);
        found += value != NULL && strcmp(value, is + 1) == 0;
    }
    if (found == 3) return;
    struct {
        int type, handle_types, location_type, location;
        void *unused;
        unsigned char more[8];
    } properties = {1, 1, 1, 0, NULL, {0}};
    unsigned long long handle;
    int descriptor = -1;
    driver()->cuCtxGetDevice(&properties.location);
    if (driver()->cuMemCreate(&handle, 2 << 20, &properties, 0) != 0) return;
    if (driver()->cuMemExportToShareableHandle(&descriptor, handle, 1, 0) == 0) close(descriptor);
}

static ncclComm make(uint64_t key, unsigned ranks, unsigned rank) {
    ncclComm comm = calloc(1, sizeof *comm);
    if (comm == NULL) return NULL;
    *comm = (struct comm){.key = key, .ranks = ranks, .rank = rank};
    driver()->cuInit(0);
    driver()->cuCtxGetCurrent(&comm->context);
    if (comm->context == NULL) {
        driver()->cuDevicePrimaryCtxRetain(&comm->context, 0);
        driver()->cuCtxSetCurrent(comm->context);
    }
    driver()->cuCtxGetDevice(&comm->device);
    comm->pairs = calloc(2 * ranks, sizeof *comm->pairs);
    comm->channel = comm->pairs != NULL ? driver()->sim_channel_join(key, ranks) : -1;
    if (comm->channel >= 0) {
        if (ranks > 1) share_memory();
        return comm;
    }
    free(comm->pairs);
    free(comm);
    return NULL;
}

static bool all_joined(struct job *job, bool wait) {
    return driver()->sim_channel_whole((unsigned)job->comm->channel, wait);
}

static ncclResult begin(const struct job *job, const struct config *config) {
    if (config == NULL || config->blocking != 0) return job_do(job);
    struct job *made = malloc(sizeof *made);
    if (made == NULL) return NCCL_SYSTEM_ERROR;
    *made = *job;
    job->comm->pending = made;
    return NCCL_IN_PROGRESS;
}

static ncclResult init(ncclComm *result, uint64_t key, int ranks, int rank, const struct config *config) {
    if (result == NULL || ranks < 1 || rank < 0 || rank >= ranks) return NCCL_INVALID_ARGUMENT;
    *result = make(key, (unsigned)ranks, (unsigned)rank);
    if (*result == NULL) return NCCL_SYSTEM_ERROR;
    return begin(&(struct job){.finish = all_joined, .comm = *result}, config);
}

EXPORT ncclResult ncclGetUniqueId(ncclUniqueId *id) {
    if (id == NULL) return NCCL_INVALID_ARGUMENT;
    return syscall(SYS_getrandom, id, sizeof *id, 0) == sizeof *id ? NCCL_SUCCESS : NCCL_SYSTEM_ERROR;
}

EXPORT ncclResult ncclCommInitRankConfig(ncclComm *comm, int ranks, ncclUniqueId id, int rank, const void *config) {
    return init(comm, key_of(&id, 1), ranks, rank, config);
}

EXPORT ncclResult ncclCommInitRank(ncclComm *comm, int ranks, ncclUniqueId id, int rank) {
    return init(comm, key_of(&id, 1), ranks, rank, NULL);
}

EXPORT ncclResult ncclCommInitRankScalable(ncclComm *comm, int ranks, int rank, int count, const ncclUniqueId *ids,
                                           const void *config) {
    return init(comm, key_of(ids, (unsigned)count), ranks, rank, config);
}

EXPORT ncclResult ncclCommInitAll(ncclComm *comms, int count, const int *devices) {
    ncclUniqueId id;
    ncclResult outcome = ncclGetUniqueId(&id);
    void *before = NULL, *context;
    driver()->cuInit(0);
    driver()->cuCtxGetCurrent(&before);
    for (int rank = 0; outcome == NCCL_SUCCESS && rank < count; rank++) {
        driver()->cuDevicePrimaryCtxRetain(&context, devices != NULL ? devices[rank] : rank);
        driver()->cuCtxSetCurrent(context);
        comms[rank] = make(key_of(&id, 1), (unsigned)count, (unsigned)rank);
        if (comms[rank] == NULL) outcome = NCCL_SYSTEM_ERROR;
    }
    driver()->cuCtxSetCurrent(before);
    return outcome;
}

/* ---- splits ---- */

#define SAID (1ull << 63)
#define WORD(color, key) (SAID | (uint64_t)((uint32_t)((color) + 1) & 0x7fffffff) << 32 | (uint32_t)(key))
#define COLOR(word) ((int)((word) >> 32 & 0x7fffffff) - 1)
#define KEY(word) ((int)(uint32_t)(word))

/* All ranks of the parent have said their color and key: who is in this one's part, in which order? */
static bool all_said(struct job *job, bool wait) {
    ncclComm parent = job->comm;
    unsigned channel = (unsigned)job->channel, ranks = 0, mine = 0;
    if (!driver()->sim_channel_reached(channel, 1, wait)) return false;
    for (unsigned rank = 0; rank < parent->ranks; rank++) {
        uint64_t word = driver()->sim_channel_word(channel, rank);
        if (COLOR(word) != job->color) continue;
        ranks++;
        mine += KEY(word) < job->key || (KEY(word) == job->key && rank < parent->rank);
    }
    driver()->sim_channel_leave(channel);
    if (job->color == NCCL_NO_COLOR) return true;
    uint64_t key = mix(mix(parent->key, parent->splits + 1), (uint64_t)job->color) | 1;
    *job->result = make(key, ranks, mine);
    if (*job->result == NULL)
        job->outcome = NCCL_SYSTEM_ERROR;
    else
        driver()->sim_channel_whole((unsigned)(*job->result)->channel, true);
    return true;
}

static ncclResult split(ncclComm parent, int color, int key, ncclComm *result, const struct config *config) {
    if (parent == NULL || result == NULL || color < NCCL_NO_COLOR) return NCCL_INVALID_ARGUMENT;
    int channel = driver()->sim_channel_join(mix(parent->key, ++parent->splits) & ~1ull, parent->ranks);
    if (channel < 0) return NCCL_SYSTEM_ERROR;
    *result = NULL;
    driver()->sim_channel_write((unsigned)channel, parent->rank, WORD(color, key));
    struct job job = {.finish = all_said, .comm = parent, .result = result, .channel = channel};
    job.color = color;
    job.key = key;
    return begin(&job, config);
}

EXPORT ncclResult ncclCommSplit(ncclComm parent, int color, int key, ncclComm *result, const void *config) {
    return split(parent, color, key, result, config);
}

/* Those who stay call it, so they alone can be waited for. */
EXPORT ncclResult ncclCommShrink(ncclComm parent, const int *excluded, int count, ncclComm *result, const void *config,
                                 int flags) {
    (void)flags;
    uint64_t key = mix(parent->key, ~0ull);
    unsigned rank = parent->rank;
    for (int at = 0; at < count; at++) {
        key = mix(key, (uint64_t)excluded[at]);
        rank -= (unsigned)excluded[at] < parent->rank;
    }
    return init(result, key | 1, (int)parent->ranks - count, (int)rank, config);
}

/* ---- leaving ---- */

static void each_channel(ncclComm comm, void (*work)(unsigned channel, unsigned rank)) {
    for (unsigned pair = 0; pair < 2 * comm->ranks; pair++)
        if (comm->pairs[pair] > 0) work((unsigned)comm->pairs[pair] - 1, pair % 2 == 0);
    work((unsigned)comm->channel, comm->rank);
}

static void settle(unsigned channel, unsigned rank) {
    driver()->sim_channel_reached(channel, driver()->sim_channel_word(channel, rank), true);
}

static void leave(unsigned channel, unsigned rank) {
    (void)rank;
    driver()->sim_channel_leave(channel);
}

static void stop(unsigned channel, unsigned rank) { driver()->sim_channel_abort(channel, rank); }

static ncclResult let_go(ncclComm comm, void (*first)(unsigned channel, unsigned rank), bool freed) {
    if (comm == NULL) return NCCL_INVALID_ARGUMENT;
    if (!comm->left) {
        comm->left = true;
        each_channel(comm, first);
        each_channel(comm, leave);
    }
    if (!freed) return NCCL_SUCCESS;
    free(comm->pairs);
    free(comm);
    return NCCL_SUCCESS;
}

EXPORT ncclResult ncclCommFinalize(ncclComm comm) { return let_go(comm, settle, false); }
EXPORT ncclResult ncclCommDestroy(ncclComm comm) { return let_go(comm, settle, true); }
EXPORT ncclResult ncclCommAbort(ncclComm comm) { return let_go(comm, stop, true); }

EXPORT ncclResult ncclCommRevoke(ncclComm comm, int flags) {
    return flags == 0 ? let_go(comm, stop, false) : NCCL_INVALID_ARGUMENT;
}

/* ---- telling ---- */

EXPORT ncclResult ncclCommCount(ncclComm comm, int *count) {
    *count = (int)comm->ranks;
    return NCCL_SUCCESS;
}

EXPORT ncclResult ncclCommUserRank(ncclComm comm, int *rank) {
    *rank = (int)comm->rank;
    return NCCL_SUCCESS;
}

/* Brings on what was begun without blocking. */
EXPORT ncclResult ncclCommGetAsyncError(ncclComm comm, ncclResult *error) {
    *error = NCCL_SUCCESS;
    struct job *job = comm->pending;
    if (job == NULL) return NCCL_SUCCESS;
    if (!job->finish(job, false)) {
        *error = NCCL_IN_PROGRESS;
        return NCCL_SUCCESS;
    }
    comm->pending = NULL;
    *error = job->outcome;
    free(job);
    return NCCL_SUCCESS;
}

EXPORT const char *ncclGetErrorString(ncclResult result) {
    return result == NCCL_SUCCESS ? "no error" : "an error of the simulated NCCL";
}
