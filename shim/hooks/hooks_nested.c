/* Graphs in graphs, and what becomes of one: what it will begin when it is launched goes with it (gate/tallies.h). */
#include "gate/communicators.h"
#include "gate/tallies.h"
#include "resolve.h"

#define KEY(handle) ((uint64_t)(uintptr_t)(handle))

int cuGraphDestroy(CUgraph graph) {
    tally_drop(TALLY_GRAPH, KEY(graph)); /* before another one can have its handle */
    return REAL(cuGraphDestroy)(graph);
}

int cuGraphClone(CUgraph *clone, CUgraph graph) {
    CUresult result = REAL(cuGraphClone)(clone, graph);
    if (result == CUDA_SUCCESS) tally_pass_on(TALLY_GRAPH, KEY(graph), TALLY_GRAPH, KEY(*clone));
    return result;
}

int cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count, CUgraph child) {
    CUresult result = REAL(cuGraphAddChildGraphNode)(node, graph, before, count, child);
    if (result == CUDA_SUCCESS) tally_pass_on(TALLY_GRAPH, KEY(child), TALLY_GRAPH, KEY(graph));
    return result;
}

/* How often the body of a condition runs, nobody knows before it has. */
static CUresult added(CUresult result, CUgraph graph, const CUgraphNodeParams *parameters) {
    struct gate *gate = gate_here();
    if (result != CUDA_SUCCESS || !parameters) return result;
    if (parameters->type == CU_GRAPH_NODE_TYPE_GRAPH)
        tally_pass_on(TALLY_GRAPH, KEY(parameters->child), TALLY_GRAPH, KEY(graph));
    if (parameters->type == CU_GRAPH_NODE_TYPE_CONDITIONAL && gate && atomic_load(&gate->used))
        gate_unsee(gate, GATE_UNSEEN_GRAPH);
    return result;
}

int cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count,
                   CUgraphNodeParams *parameters) {
    return added(REAL(cuGraphAddNode)(node, graph, before, count, parameters), graph, parameters);
}

int cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, const void *edges, size_t count,
                      CUgraphNodeParams *parameters) {
    return added(REAL(cuGraphAddNode_v2)(node, graph, before, edges, count, parameters), graph, parameters);
}

static CUresult updated(CUresult result, CUgraphExec exec, CUgraph graph) {
    if (result == CUDA_SUCCESS) {
        tally_drop(TALLY_EXEC, KEY(exec));
        tally_pass_on(TALLY_GRAPH, KEY(graph), TALLY_EXEC, KEY(exec));
    }
    return result;
}

int cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *node, int *how) {
    return updated(REAL(cuGraphExecUpdate)(exec, graph, node, how), exec, graph);
}

int cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, void *how) {
    return updated(REAL(cuGraphExecUpdate_v2)(exec, graph, how), exec, graph);
}
