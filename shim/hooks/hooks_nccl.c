/* NCCL's operations: counted, and held back while the scheduler stops ranks together (gate/gate.h). */
#include "gate/passage.h"
#include "hooks_stream.h"
#include "resolve.h"

#include <string.h>

#define PASS(kind, peer, call)                                                                                         \
    struct passage passage;                                                                                            \
    if (!passage_begin(&passage, comm, kind, peer, streams_capture(stream))) return ncclInvalidUsage;                  \
    return passage_end(&passage, call)

/* The common way is short and by itself. The real one is looked up first: loads wait for no addition then. */
#define COLLECTIVE(name, parameters, arguments)                                                                        \
    __attribute__((cold, noinline)) static int name##_slowly parameters {                                              \
        PASS(GATE_COLLECTIVE, 0, REAL(name) arguments);                                                                \
    }                                                                                                                  \
    int name parameters {                                                                                              \
        name##_function *real = REAL(name);                                                                            \
        int captures = atomic_load_explicit(&streams_captures, memory_order_relaxed);                                  \
        return passage_quick(comm, captures) ? passage_quick_end(real arguments) : name##_slowly arguments;            \
    }

#define BUFFERS const void *from, void *to, size_t count, int type
#define LAST ncclComm_t comm, CUstream stream

COLLECTIVE(ncclAllGather, (BUFFERS, LAST), (from, to, count, type, comm, stream))
COLLECTIVE(ncclAllGatherConfig, (BUFFERS, LAST, const void *how), (from, to, count, type, comm, stream, how))
COLLECTIVE(ncclAlltoAll, (BUFFERS, LAST), (from, to, count, type, comm, stream))
COLLECTIVE(ncclAlltoAllConfig, (BUFFERS, LAST, const void *how), (from, to, count, type, comm, stream, how))
COLLECTIVE(ncclReduce, (BUFFERS, int operator, int root, LAST), (from, to, count, type, operator, root, comm, stream))
COLLECTIVE(ncclReduceConfig, (BUFFERS, int operator, int root, LAST, const void *how),
           (from, to, count, type, operator, root, comm, stream, how))
COLLECTIVE(ncclBcast, (void *buffer, size_t count, int type, int root, LAST), (buffer, count, type, root, comm, stream))

/* `more`: the operator, or the root. */
#define OF_FIVE(name)                                                                                                  \
    COLLECTIVE(name, (BUFFERS, int more, LAST), (from, to, count, type, more, comm, stream))                           \
    COLLECTIVE(name##Config, (BUFFERS, int more, LAST, const void *how),                                               \
               (from, to, count, type, more, comm, stream, how))
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
