/* NCCL's operations: counted, and held back while the scheduler stops ranks together (gate/gate.h). */
#include "gate/passage.h"
#include "hooks_stream.h"
#include "resolve.h"

#include <string.h>

#define PASS(kind, peer, call)                                                                                         \
    struct passage passage;                                                                                            \
    if (!passage_begin(&passage, comm, kind, peer, streams_capture(stream))) return ncclInvalidUsage;                  \
    return passage_end(&passage, call)

/* The real one is looked up first: loads wait for no addition then. */
#define COLLECTIVE(name, arguments)                                                                                    \
    name##_function *real = REAL(name);                                                                                \
    struct passage passage;                                                                                            \
    if (!passage_begin_collective(&passage, comm, streams_capture(stream))) return ncclInvalidUsage;                   \
    return passage_end_collective(&passage, real arguments)

int ncclAllGather(const void *from, void *to, size_t count, int type, ncclComm_t comm, CUstream stream) {
    COLLECTIVE(ncclAllGather, (from, to, count, type, comm, stream));
}

int ncclAllGatherConfig(const void *from, void *to, size_t count, int type, ncclComm_t comm, CUstream stream,
                        const void *config) {
    COLLECTIVE(ncclAllGatherConfig, (from, to, count, type, comm, stream, config));
}

int ncclAlltoAll(const void *from, void *to, size_t count, int type, ncclComm_t comm, CUstream stream) {
    COLLECTIVE(ncclAlltoAll, (from, to, count, type, comm, stream));
}

int ncclAlltoAllConfig(const void *from, void *to, size_t count, int type, ncclComm_t comm, CUstream stream,
                       const void *config) {
    COLLECTIVE(ncclAlltoAllConfig, (from, to, count, type, comm, stream, config));
}

int ncclBcast(void *buffer, size_t count, int type, int root, ncclComm_t comm, CUstream stream) {
    COLLECTIVE(ncclBcast, (buffer, count, type, root, comm, stream));
}

int ncclReduce(const void *from, void *to, size_t count, int type, int operator, int root, ncclComm_t comm,
               CUstream stream) {
    COLLECTIVE(ncclReduce, (from, to, count, type, operator, root, comm, stream));
}

int ncclReduceConfig(const void *from, void *to, size_t count, int type, int operator, int root, ncclComm_t comm,
                     CUstream stream, const void *config) {
    COLLECTIVE(ncclReduceConfig, (from, to, count, type, operator, root, comm, stream, config));
}

/* `more`: the operator, or the root. */
#define OF_FIVE(name)                                                                                                  \
    int name(const void *from, void *to, size_t count, int type, int more, ncclComm_t comm, CUstream stream) {         \
        COLLECTIVE(name, (from, to, count, type, more, comm, stream));                                                 \
    }                                                                                                                  \
    int name##Config(const void *from, void *to, size_t count, int type, int more, ncclComm_t comm, CUstream stream,   \
                     const void *config) {                                                                             \
        COLLECTIVE(name##Config, (from, to, count, type, more, comm, stream, config));                                 \
    }
OF_FIVE(ncclAllReduce)
OF_FIVE(ncclReduceScatter)
OF_FIVE(ncclBroadcast)
OF_FIVE(ncclGather)
OF_FIVE(ncclScatter)

int ncclSend(const void *from, size_t count, int type, int peer, ncclComm_t comm, CUstream stream) {
    PASS(GATE_SEND, peer, REAL(ncclSend)(from, count, type, peer, comm, stream));
}

int ncclRecv(void *to, size_t count, int type, int peer, ncclComm_t comm, CUstream stream) {
    PASS(GATE_RECEIVE, peer, REAL(ncclRecv)(to, count, type, peer, comm, stream));
}

/* ---- groups ---- */

int ncclGroupStart(void) {
    int result = REAL(ncclGroupStart)();
    if (result == ncclSuccess) passage_group_started();
    return result;
}

int ncclGroupEnd(void) {
    struct passage passage;
    passage_begin_group(&passage, true);
    return passage_end_group(&passage, REAL(ncclGroupEnd)());
}

int ncclGroupSimulateEnd(void *information) {
    struct passage passage;
    passage_begin_group(&passage, false);
    return passage_end_group(&passage, REAL(ncclGroupSimulateEnd)(information));
}

/* ---- what is not counted: one side alone, and kernels of the program's own that wait for each other ---- */

#define UNSEEN(call)                                                                                                   \
    struct gate *gate = gate_here();                                                                                   \
    if (gate) gate_unsee(gate, GATE_UNSEEN_DEVICE);                                                                    \
    return call

int ncclDevCommCreate(ncclComm_t comm, const void *needs, void *made) {
    UNSEEN(REAL(ncclDevCommCreate)(comm, needs, made));
}

int ncclPutSignal(const void *from, size_t count, int type, int peer, void *window, size_t offset, int signal,
                  int context, unsigned flags, ncclComm_t comm, CUstream stream) {
    UNSEEN(REAL(ncclPutSignal)(from, count, type, peer, window, offset, signal, context, flags, comm, stream));
}

int ncclSignal(int peer, int signal, int context, unsigned flags, ncclComm_t comm, CUstream stream) {
    UNSEEN(REAL(ncclSignal)(peer, signal, context, flags, comm, stream));
}

int ncclWaitSignal(int count, void *signals, ncclComm_t comm, CUstream stream) {
    UNSEEN(REAL(ncclWaitSignal)(count, signals, comm, stream));
}

/* Kernels of those who are not seen at all, NCCL linked statically and NVSHMEM, are known by their names, when the
 * runtime looks them up. */
static CUresult found(CUresult result, const char *name) {
    struct gate *gate = result == CUDA_SUCCESS && name ? gate_here() : NULL;
    if (!gate) return result;
    if (strstr(name, "nvshmem")) gate_unsee(gate, GATE_UNSEEN_NVSHMEM);
    if (strstr(name, "ncclDevKernel") && !passage_ever()) gate_unsee(gate, GATE_UNSEEN_STATIC);
    return result;
}

int cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    return found(REAL(cuModuleGetFunction)(function, module, name), name);
}

int cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    return found(REAL(cuLibraryGetKernel)(kernel, library, name), name);
}
