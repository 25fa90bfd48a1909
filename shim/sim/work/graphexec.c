/* Executable graphs: a graph's work in one list, to be run as often as the program likes. */
#include "graph.h"

#include <stdlib.h>

struct exec {
    bool free_before_launch;
    size_t count;
    struct work *work;
};

enum { AUTO_FREE_ON_LAUNCH = 1 };

static size_t count_work(CUgraph graph) {
    size_t count = 0;
    for (const struct node *node = graph->first; node != NULL; node = node->next)
        count += node->work.type == NODE_CHILD ? count_work(node->work.child) : 1;
    return count;
}

static void flatten(CUgraph graph, struct exec *exec) {
    for (const struct node *node = graph->first; node != NULL; node = node->next) {
        if (node->work.type == NODE_CHILD) {
            flatten(node->work.child, exec);
            continue;
        }
        if (node->work.type == NODE_ALLOC) graph_memory_hold(node->work.alloc.memory);
        exec->work[exec->count++] = node->work;
    }
}

static CUresult instantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    if (exec == NULL || graph == NULL) return CUDA_ERROR_INVALID_VALUE;
    struct exec *made = sim_new(sizeof *made);
    size_t count = count_work(graph);
    if (made != NULL) made->work = calloc(count + 1, sizeof *made->work);
    if (made == NULL || made->work == NULL) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->free_before_launch = flags & AUTO_FREE_ON_LAUNCH;
    flatten(graph, made);
    *exec = made;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *failed, char *log, size_t room) {
    ENTERED();
    if (failed != NULL) *failed = NULL;
    if (log != NULL && room > 0) *log = '\0';
    return instantiate(exec, graph, 0);
}
ALSO(cuGraphInstantiate_v2, cuGraphInstantiate);

ENTRY(cuGraphInstantiateWithFlags, (CUgraphExec *exec, CUgraph graph, unsigned long long flags),
      instantiate(exec, graph, flags));

struct instantiate_params {
    unsigned long long flags;
    CUstream upload;
    CUgraphNode failed;
    int result;
};

EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, struct instantiate_params *params) {
    ENTERED();
    if (params == NULL) return CUDA_ERROR_INVALID_VALUE;
    params->failed = NULL;
    params->result = 0;
    return instantiate(exec, graph, params->flags);
}
ALSO(cuGraphInstantiateWithParams_ptsz, cuGraphInstantiateWithParams);

EXPORT CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
    ENTERED();
    if (exec == NULL) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < exec->count; i++)
        if (exec->work[i].type == NODE_ALLOC) REQUIRE(graph_memory_prepare(exec->work[i].alloc.memory));
    return CUDA_SUCCESS;
}
ALSO(cuGraphUpload_ptsz, cuGraphUpload);

EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    ENTERED_IN(context);
    if (exec == NULL) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < exec->count; i++) {
        const struct work *work = &exec->work[i];
        if (work->type == NODE_ALLOC)
            REQUIRE(graph_memory_take(work->alloc.memory, exec->free_before_launch));
        else
            REQUIRE(work_run(stream, work));
    }
    return CUDA_SUCCESS;
}
ALSO(cuGraphLaunch_ptsz, cuGraphLaunch);

static void drop(const struct exec *exec) {
    for (size_t i = 0; i < exec->count; i++)
        if (exec->work[i].type == NODE_ALLOC) graph_memory_drop(exec->work[i].alloc.memory);
    free(exec->work);
}

static CUresult update(CUgraphExec exec, CUgraph graph) {
    CUgraphExec made;
    if (exec == NULL) return CUDA_ERROR_INVALID_VALUE;
    REQUIRE(instantiate(&made, graph, exec->free_before_launch ? AUTO_FREE_ON_LAUNCH : 0));
    drop(exec);
    *exec = *made;
    free(made);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *failed, int *how) {
    ENTERED();
    if (failed != NULL) *failed = NULL;
    if (how != NULL) *how = 0;
    return update(exec, graph);
}

ENTRY(cuGraphExecUpdate_v2, (CUgraphExec exec, CUgraph graph, void *how), update(exec, graph));

EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec) {
    ENTERED();
    if (exec == NULL) return CUDA_ERROR_INVALID_VALUE;
    drop(exec);
    free(exec);
    return CUDA_SUCCESS;
}
