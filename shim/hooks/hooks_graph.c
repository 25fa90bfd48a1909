/* Graphs that allocate. Their nodes only have addresses; memory is taken when the graph first runs, from a pool of
 * the device's own that keeps it until it is trimmed. So a graph is looked through when it is instantiated, and what it
 * needs is taken from the lease before each run that may make that pool grow. Graphs without such nodes, and kernel
 * launches, cost nothing. */
#include "charging/charge.h"
#include "charging/devices.h"
#include "fork.h"
#include "gate/passage.h"
#include "gate/tallies.h"
#include "hooks_stream.h"
#include "ledger.h"
#include "charging/pools.h"
#include "resolve.h"

#include <stdlib.h>

#define UNIT 512
#define KEY(handle) ((uint64_t)(uintptr_t)(handle))

/* Executable graphs that allocate. While there are none, a launch is a load and a jump. */
static _Atomic int allocating;

static void graphs_forget(void) { atomic_store(&allocating, 0); }
FORGET_IN_CHILD(graphs_forget);

/* ---- what a graph needs ---- */

/* Follows a graph's nodes in the order in which they were made, which for a capture is the order in which they run:
 * what is allocated and not yet freed, and the most of that. Branches that run at once may need more: that is
 * found in what the driver has reserved after the run. */
struct footprint {
    uint64_t now[DEVICES], most[DEVICES];
    struct {
        CUdeviceptr address;
        uint64_t bytes;
        CUdevice device;
    } *living;
    size_t count, room;
    bool failed; /* no host memory */
};

static void follow_allocation(struct footprint *footprint, CUgraphNode node) {
    CUDA_MEM_ALLOC_NODE_PARAMS parameters;
    if (REAL(cuGraphMemAllocNodeGetParams)(node, &parameters) != CUDA_SUCCESS) return;
    CUdevice device = parameters.poolProps.location.id;
    if (parameters.poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE || device < 0 || device >= DEVICES) return;
    if (footprint->count == footprint->room) {
        size_t room = footprint->room ? footprint->room * 2 : 16;
        void *wider = realloc(footprint->living, room * sizeof *footprint->living);
        footprint->failed |= !wider;
        if (!wider) return;
        footprint->living = wider;
        footprint->room = room;
    }
    uint64_t bytes = (parameters.bytesize + UNIT - 1) & ~(uint64_t)(UNIT - 1);
    footprint->living[footprint->count].address = parameters.dptr;
    footprint->living[footprint->count].bytes = bytes;
    footprint->living[footprint->count++].device = device;
    footprint->now[device] += bytes;
    if (footprint->now[device] > footprint->most[device]) footprint->most[device] = footprint->now[device];
}

static void follow_free(struct footprint *footprint, CUgraphNode node) {
    CUdeviceptr address;
    if (REAL(cuGraphMemFreeNodeGetParams)(node, &address) != CUDA_SUCCESS) return;
    for (size_t at = 0; at < footprint->count; at++) {
        if (footprint->living[at].address != address) continue;
        footprint->now[footprint->living[at].device] -= footprint->living[at].bytes;
        footprint->living[at] = footprint->living[--footprint->count];
        return;
    }
}

static void follow(struct footprint *footprint, CUgraph graph) {
    size_t count = 0;
    if (REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS || !count) return;
    CUgraphNode *nodes = calloc(count, sizeof *nodes);
    footprint->failed |= !nodes;
    if (!nodes || REAL(cuGraphGetNodes)(graph, nodes, &count) != CUDA_SUCCESS) count = 0;
    for (size_t at = 0; at < count; at++) {
        int type;
        CUgraph child;
        if (REAL(cuGraphNodeGetType)(nodes[at], &type) != CUDA_SUCCESS) continue;
        if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) follow_allocation(footprint, nodes[at]);
        if (type == CU_GRAPH_NODE_TYPE_MEM_FREE) follow_free(footprint, nodes[at]);
        if (type == CU_GRAPH_NODE_TYPE_GRAPH && REAL(cuGraphChildGraphNodeGetGraph)(nodes[at], &child) == CUDA_SUCCESS)
            follow(footprint, child);
    }
    free(nodes);
}

/* ---- taking it ---- */

struct run {
    struct pool *pool[DEVICES];
    struct growth growth[DEVICES];
};

static void end_run(struct run *run, bool succeeded) {
    for (CUdevice device = 0; device < DEVICES; device++)
        if (run->pool[device]) pool_end(run->pool[device], &run->growth[device], succeeded);
}

static CUresult begin_run(struct run *run, const uint64_t need[DEVICES]) {
    CUresult result = CUDA_SUCCESS;
    *run = (struct run){.pool = {NULL}};
    for (CUdevice device = 0; device < DEVICES && result == CUDA_SUCCESS; device++) {
        if (!need[device]) continue;
        struct pool *pool = pools_of_graphs(device, &result);
        if (!pool) break;
        result = pool_begin_graph(pool, need[device], &run->growth[device]);
        if (result == CUDA_SUCCESS) run->pool[device] = pool;
    }
    if (result != CUDA_SUCCESS) end_run(run, false);
    return result;
}

/* One entry for each device on which the graph allocates; the device is part of the key. */
static uint64_t exec_key(CUgraphExec exec, CUdevice device) {
    return (uint64_t)(uintptr_t)exec << 6 ^ (uint64_t)(uintptr_t)exec >> 58 ^ (uint64_t)device;
}

/* Takes its entries out; what they said is added to `need`. */
static void take_exec(CUgraphExec exec, uint64_t need[DEVICES]) {
    struct ledger_entry entry;
    for (CUdevice device = 0; device < DEVICES; device++) {
        if (!ledger_take(LEDGER_EXEC, exec_key(exec, device), &entry)) continue;
        atomic_fetch_sub(&allocating, 1);
        need[device] += entry.bytes;
    }
}

static void forget_exec(CUgraphExec exec) {
    uint64_t unused[DEVICES] = {0};
    take_exec(exec, unused);
}

static CUresult note_exec(CUgraphExec exec, const uint64_t need[DEVICES]) {
    forget_exec(exec); /* an earlier one under the same handle that ended unseen */
    for (CUdevice device = 0; device < DEVICES; device++) {
        struct ledger_entry replaced;
        struct ledger_entry entry = {.kind = LEDGER_EXEC, .key = exec_key(exec, device), .bytes = need[device]};
        if (!need[device]) continue;
        atomic_fetch_add(&allocating, 1);
        if (ledger_put(&entry, &replaced)) continue;
        atomic_fetch_sub(&allocating, 1);
        forget_exec(exec);
        REAL(cuGraphExecDestroy)(exec);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

/* Instantiating may run the upload at once, so it is treated as a run. */
static CUresult instantiate(CUgraph graph, struct footprint *footprint, struct run *run) {
    *footprint = (struct footprint){.count = 0};
    follow(footprint, graph);
    free(footprint->living);
    return footprint->failed ? CUDA_ERROR_OUT_OF_MEMORY : begin_run(run, footprint->most);
}

#define INSTANTIATE(call)                                                                                              \
    struct footprint footprint;                                                                                        \
    struct run run;                                                                                                    \
    CUresult result = instantiate(graph, &footprint, &run);                                                            \
    if (result != CUDA_SUCCESS) return result;                                                                         \
    result = call;                                                                                                     \
    end_run(&run, result == CUDA_SUCCESS);                                                                             \
    if (result == CUDA_SUCCESS) result = note_exec(*exec, footprint.most);                                             \
    if (result == CUDA_SUCCESS) tally_pass_on(TALLY_GRAPH, KEY(graph), TALLY_EXEC, KEY(*exec));                        \
    return result

int cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size) {
    INSTANTIATE(REAL(cuGraphInstantiate)(exec, graph, error, log, size));
}

int cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size) {
    INSTANTIATE(REAL(cuGraphInstantiate_v2)(exec, graph, error, log, size));
}

int cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    INSTANTIATE(REAL(cuGraphInstantiateWithFlags)(exec, graph, flags));
}

int cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, void *parameters) {
    INSTANTIATE(REAL(cuGraphInstantiateWithParams)(exec, graph, parameters));
}

int cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, void *parameters) {
    INSTANTIATE(REAL(cuGraphInstantiateWithParams_ptsz)(exec, graph, parameters));
}

static CUresult begin_exec(CUgraphExec exec, struct run *run) {
    uint64_t need[DEVICES] = {0};
    for (CUdevice device = 0; device < DEVICES; device++) {
        struct ledger_entry entry;
        if (ledger_get(LEDGER_EXEC, exec_key(exec, device), &entry)) need[device] = entry.bytes;
    }
    return begin_run(run, need);
}

#define RUN(call)                                                                                                      \
    struct run run;                                                                                                    \
    if (!atomic_load_explicit(&allocating, memory_order_relaxed)) return call;                                         \
    CUresult result = begin_exec(exec, &run);                                                                          \
    if (result != CUDA_SUCCESS) return result;                                                                         \
    result = call;                                                                                                     \
    end_run(&run, result == CUDA_SUCCESS);                                                                             \
    return result

static CUresult run(CUgraphExec exec, CUstream stream, cuGraphLaunch_function *launch) { RUN(launch(exec, stream)); }

/* `seen`: the stream, as all calls know it. */
static CUresult launch(CUgraphExec exec, CUstream stream, CUstream seen, cuGraphLaunch_function *real) {
    if (!atomic_load_explicit(&tallies, memory_order_relaxed)) return run(exec, stream, real);
    struct passage passage;
    passage_begin_graph(&passage, KEY(exec), streams_capture(seen));
    return passage_end_graph(&passage, run(exec, stream, real));
}

int cuGraphLaunch(CUgraphExec exec, CUstream stream) { return launch(exec, stream, stream, REAL(cuGraphLaunch)); }

int cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
    return launch(exec, stream, PER_THREAD(stream), REAL(cuGraphLaunch_ptsz));
}

int cuGraphUpload(CUgraphExec exec, CUstream stream) { RUN(REAL(cuGraphUpload)(exec, stream)); }

int cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) { RUN(REAL(cuGraphUpload_ptsz)(exec, stream)); }

int cuGraphExecDestroy(CUgraphExec exec) {
    uint64_t need[DEVICES] = {0};
    tally_drop(TALLY_EXEC, KEY(exec));
    if (!atomic_load(&allocating)) return REAL(cuGraphExecDestroy)(exec);
    take_exec(exec, need); /* before another one can have its handle */
    CUresult result = REAL(cuGraphExecDestroy)(exec);
    if (result != CUDA_SUCCESS) note_exec(exec, need);
    return result;
}

int cuDeviceGraphMemTrim(CUdevice device) {
    CUresult result = REAL(cuDeviceGraphMemTrim)(device), unused;
    struct pool *pool = result == CUDA_SUCCESS ? pools_of_graphs(device, &unused) : NULL;
    if (pool) pool_look(pool);
    return result;
}
