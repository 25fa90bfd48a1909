/* Graphs. A node is one piece of work; nodes run in the order in which they were added, which satisfies every
 * dependency because a node can only depend on earlier ones. */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

CUgraph graph_new(void) {
    struct graph *graph = calloc(1, sizeof *graph);
    if (graph != NULL) graph->last = &graph->first;
    return graph;
}

CUresult graph_add(CUgraph graph, const struct work *work, CUgraphNode *node) {
    struct node *made = calloc(1, sizeof *made);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct node){.graph = graph, .work = *work};
    *graph->last = made;
    graph->last = &made->next;
    if (node != NULL) *node = made;
    return CUDA_SUCCESS;
}

static void graph_end(CUgraph graph) {
    for (struct node *node = graph->first, *next; node != NULL; node = next) {
        next = node->next;
        if (node->work.type == NODE_ALLOC) graph_memory_drop(node->work.alloc.memory);
        if (node->work.type == NODE_CHILD) graph_end(node->work.child);
        free(node);
    }
    free(graph);
}

static CUgraph graph_copy(CUgraph graph) {
    CUgraph copy = graph_new();
    for (const struct node *node = graph->first; copy != NULL && node != NULL; node = node->next) {
        struct work work = node->work;
        if (work.type == NODE_ALLOC) graph_memory_hold(work.alloc.memory);
        if (work.type == NODE_CHILD) work.child = graph_copy(work.child);
        graph_add(copy, &work, NULL);
    }
    return copy;
}

EXPORT CUresult cuGraphCreate(CUgraph *graph, unsigned flags) {
    ENTERED_READY();
    if (graph == NULL || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    *graph = graph_new();
    return *graph != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuGraphDestroy(CUgraph graph) {
    ENTERED();
    if (graph == NULL) return CUDA_ERROR_INVALID_VALUE;
    graph_end(graph);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphClone(CUgraph *clone, CUgraph graph) {
    ENTERED();
    if (clone == NULL || graph == NULL) return CUDA_ERROR_INVALID_VALUE;
    *clone = graph_copy(graph);
    return *clone != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    ENTERED();
    if (graph == NULL || count == NULL) return CUDA_ERROR_INVALID_VALUE;
    size_t found = 0;
    for (struct node *node = graph->first; node != NULL; node = node->next, found++)
        if (nodes != NULL && found < *count) nodes[found] = node;
    for (size_t i = found; nodes != NULL && i < *count; i++) nodes[i] = NULL;
    if (nodes == NULL || found < *count) *count = found;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphNodeGetType(CUgraphNode node, int *type) {
    ENTERED();
    if (node == NULL || type == NULL) return CUDA_ERROR_INVALID_VALUE;
    *type = node->work.type;
    return CUDA_SUCCESS;
}

/* ---- nodes ---- */

struct pool_properties {
    int type, handle_types;
    struct location location;
    void *unused;
    size_t most;
    unsigned char more[56];
};

struct alloc_params { /* CUDA_MEM_ALLOC_NODE_PARAMS, both versions */
    struct pool_properties pool;
    const void *accesses;
    size_t access_count;
    size_t bytes;
    CUdeviceptr address;
};
_Static_assert(sizeof(struct alloc_params) == 120, "CUDA's layout");

struct node_params { /* CUgraphNodeParams */
    int type;
    int reserved[3];
    union {
        struct alloc_params alloc;
        CUdeviceptr free;
        struct {
            CUgraph graph;
            int ownership;
        } child;
        struct {
            void (*function)(void *);
            void *data;
        } host;
        long long padding[29];
    };
    long long more;
};
_Static_assert(sizeof(struct node_params) == 256, "CUDA's layout");

static CUresult alloc_work(CUdevice device, uint64_t bytes, struct work *work) {
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    *work = (struct work){.type = NODE_ALLOC, .alloc = {graph_memory_new(device, bytes), bytes}};
    return work->alloc.memory != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult add_alloc(CUgraph graph, struct alloc_params *params, CUgraphNode *node) {
    if (params == NULL || params->pool.type != TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    if (params->pool.location.type != LOCATION_DEVICE || params->pool.handle_types != HANDLE_NONE)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!sim_valid(params->pool.location.id)) return CUDA_ERROR_INVALID_DEVICE;
    struct work work;
    REQUIRE(alloc_work(params->pool.location.id, params->bytes, &work));
    params->address = graph_memory_address(work.alloc.memory);
    return graph_add(graph, &work, node);
}

EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                       struct alloc_params *params) {
    ENTERED();
    if (node == NULL || graph == NULL) return CUDA_ERROR_INVALID_VALUE;
    return add_alloc(graph, params, node);
}

EXPORT CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, struct alloc_params *params) {
    ENTERED();
    if (node == NULL || params == NULL || node->work.type != NODE_ALLOC) return CUDA_ERROR_INVALID_VALUE;
    memset(params, 0, sizeof *params);
    params->pool.type = TYPE_PINNED;
    params->pool.location = (struct location){LOCATION_DEVICE, graph_memory_device(node->work.alloc.memory)};
    params->bytes = node->work.alloc.asked;
    params->address = graph_memory_address(node->work.alloc.memory);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                      CUdeviceptr address) {
    ENTERED();
    if (node == NULL || graph == NULL || address == 0) return CUDA_ERROR_INVALID_VALUE;
    return graph_add(graph, &(struct work){.type = NODE_FREE, .free = address}, node);
}

EXPORT CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *address) {
    ENTERED();
    if (node == NULL || address == NULL || node->work.type != NODE_FREE) return CUDA_ERROR_INVALID_VALUE;
    *address = node->work.free;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count) {
    ENTERED();
    if (node == NULL || graph == NULL) return CUDA_ERROR_INVALID_VALUE;
    return graph_add(graph, &(struct work){.type = NODE_EMPTY}, node);
}

static CUresult add_child(CUgraph graph, CUgraph child, CUgraphNode *node) {
    if (child == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUgraph copy = graph_copy(child);
    if (copy == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    return graph_add(graph, &(struct work){.type = NODE_CHILD, .child = copy}, node);
}

EXPORT CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                         CUgraph child) {
    ENTERED();
    if (node == NULL || graph == NULL) return CUDA_ERROR_INVALID_VALUE;
    return add_child(graph, child, node);
}

EXPORT CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph) {
    ENTERED();
    if (node == NULL || graph == NULL || node->work.type != NODE_CHILD) return CUDA_ERROR_INVALID_VALUE;
    *graph = node->work.child;
    return CUDA_SUCCESS;
}

static CUresult add_node(CUgraphNode *node, CUgraph graph, struct node_params *params) {
    if (node == NULL || graph == NULL || params == NULL) return CUDA_ERROR_INVALID_VALUE;
    switch (params->type) {
        case NODE_ALLOC:
            return add_alloc(graph, &params->alloc, node);
        case NODE_FREE:
            return graph_add(graph, &(struct work){.type = NODE_FREE, .free = params->free}, node);
        case NODE_CHILD:
            return add_child(graph, params->child.graph, node);
        case NODE_EMPTY:
            return graph_add(graph, &(struct work){.type = NODE_EMPTY}, node);
        case NODE_HOST: {
            struct work work = {.type = NODE_HOST, .host = {params->host.function, params->host.data}};
            return params->host.function != NULL ? graph_add(graph, &work, node) : CUDA_ERROR_INVALID_VALUE;
        }
        default:
            return CUDA_ERROR_NOT_SUPPORTED;
    }
}

ENTRY(cuGraphAddNode,
      (CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, struct node_params *params),
      add_node(node, graph, params));

ENTRY(cuGraphAddNode_v2,
      (CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count,
       struct node_params *params),
      add_node(node, graph, params));
