/* Groups, and the operations: what is between the outermost start and end is done at the end. */
#include "nccl.h"

#include <stdlib.h>

static _Thread_local unsigned depth;
static _Thread_local struct job *first, **last;

static ncclResult finish(struct job *job, bool wait) {
    bool finished = job->finish(job, wait);
    ncclResult outcome = job->outcome;
    if (finished)
        free(job);
    else
        job->comm->pending = job;
    return finished ? outcome : NCCL_IN_PROGRESS;
}

ncclResult job_do(const struct job *job) {
    struct job *made = malloc(sizeof *made);
    if (made == NULL) return NCCL_SYSTEM_ERROR;
    *made = *job;
    made->next = NULL;
    if (depth == 0) return finish(made, true);
    if (first == NULL) last = &first;
    *last = made;
    last = &made->next;
    return NCCL_SUCCESS;
}

static ncclResult end(bool do_it) {
    if (depth == 0) return NCCL_INVALID_USAGE;
    if (--depth > 0) return NCCL_SUCCESS;
    ncclResult outcome = NCCL_SUCCESS;
    while (first != NULL) {
        struct job *job = first;
        first = job->next;
        ncclResult one = do_it ? finish(job, true) : NCCL_SUCCESS;
        if (!do_it) free(job);
        if (outcome == NCCL_SUCCESS) outcome = one;
    }
    return outcome;
}

EXPORT ncclResult ncclGroupStart(void) {
    depth++;
    return NCCL_SUCCESS;
}

EXPORT ncclResult ncclGroupEnd(void) { return end(true); }

EXPORT ncclResult ncclGroupSimulateEnd(void *information) {
    (void)information;
    return end(false);
}

/* ---- operations ---- */

#define LATENCY_NS 5000
#define BYTES_PER_NS 200

static bool launch(struct job *job, bool wait) {
    (void)wait;
    void *before = NULL;
    driver()->cuCtxGetCurrent(&before);
    driver()->cuCtxSetCurrent(job->comm->context);
    int result = driver()->sim_collective(job->stream, (unsigned)job->channel, job->rank, job->ns);
    driver()->cuCtxSetCurrent(before);
    job->outcome = result == 0 ? NCCL_SUCCESS : NCCL_CUDA_ERROR;
    return true;
}

static uint64_t takes(size_t count, int type) {
    static const unsigned char bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return LATENCY_NS + count * bytes[type] / BYTES_PER_NS;
}

static ncclResult collective(ncclComm comm, size_t count, int type, CUstream stream) {
    if (comm == NULL || type < 0 || type > 11) return NCCL_INVALID_ARGUMENT;
    if (comm->left || comm->pending != NULL) return NCCL_INVALID_USAGE;
    struct job job = {.finish = launch, .comm = comm, .channel = comm->channel, .rank = comm->rank, .stream = stream};
    job.ns = takes(count, type);
    return job_do(&job);
}

static ncclResult pair(ncclComm comm, unsigned peer, bool sends, size_t count, int type, CUstream stream) {
    if (comm == NULL || type < 0 || type > 11 || peer >= comm->ranks) return NCCL_INVALID_ARGUMENT;
    if (comm->left || comm->pending != NULL) return NCCL_INVALID_USAGE;
    if (peer == comm->rank) return NCCL_SUCCESS;
    struct job job = {.finish = launch, .comm = comm, .rank = !sends, .stream = stream, .ns = takes(count, type)};
    job.channel = pair_channel(comm, peer, sends);
    return job.channel < 0 ? NCCL_SYSTEM_ERROR : job_do(&job);
}

/* Parameters before the communicator, and which of them say how much of what. Those whose name ends in Config, which
 * NCCL 2.31 brought, have one more. */
#define OPERATION(name, parameters)                                                                                    \
    EXPORT ncclResult name(parameters, ncclComm comm, CUstream stream) {                                               \
        UNUSED;                                                                                                        \
        return collective(comm, count, type, stream);                                                                  \
    }                                                                                                                  \
    EXPORT ncclResult name##Config(parameters, ncclComm comm, CUstream stream, const void *config) {                   \
        (void)config;                                                                                                  \
        UNUSED;                                                                                                        \
        return collective(comm, count, type, stream);                                                                  \
    }
#define COMMA ,
#define BUFFERS const void *from COMMA void *to COMMA size_t count COMMA int type
#define UNUSED (void)from, (void)to
OPERATION(ncclAllGather, BUFFERS)
OPERATION(ncclAlltoAll, BUFFERS)
#undef UNUSED
#define UNUSED (void)from, (void)to, (void)more
OPERATION(ncclAllReduce, BUFFERS COMMA int more)
OPERATION(ncclReduceScatter, BUFFERS COMMA int more)
OPERATION(ncclBroadcast, BUFFERS COMMA int more)
OPERATION(ncclGather, BUFFERS COMMA int more)
OPERATION(ncclScatter, BUFFERS COMMA int more)
#undef UNUSED
#define UNUSED (void)from, (void)to, (void)more, (void)root
OPERATION(ncclReduce, BUFFERS COMMA int more COMMA int root)

/* As NCCL does: through its own exported name. */
EXPORT ncclResult ncclBcast(void *buffer, size_t count, int type, int root, ncclComm comm, CUstream stream) {
    return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

EXPORT ncclResult ncclSend(const void *from, size_t count, int type, int peer, ncclComm comm, CUstream stream) {
    (void)from;
    return pair(comm, (unsigned)peer, true, count, type, stream);
}

EXPORT ncclResult ncclRecv(void *to, size_t count, int type, int peer, ncclComm comm, CUstream stream) {
    (void)to;
    return pair(comm, (unsigned)peer, false, count, type, stream);
}

/* ---- one side alone, and kernels of the program's own: only that they are called is simulated ---- */

#define NOTHING(name)                                                                                                  \
    EXPORT ncclResult name(void);                                                                                      \
    EXPORT ncclResult name(void) { return NCCL_SUCCESS; }
NOTHING(ncclPutSignal)
NOTHING(ncclSignal)
NOTHING(ncclWaitSignal)
NOTHING(ncclDevCommCreate)
