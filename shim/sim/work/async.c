/* Stream-ordered allocation, and streams that capture their work into a graph. */
#include "driver.h"

static CUresult take(CUdeviceptr *address, uint64_t bytes, CUmemoryPool pool, CUstream handle) {
    struct context *context;
    REQUIRE(context_current(&context));
    if (address == NULL || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    const struct stream *stream = stream_of(handle);
    if (stream->capturing == NULL) return pool_take(pool != NULL ? pool : pool_current(stream->device), bytes, address);
    struct work work = {.type = NODE_ALLOC, .alloc = {graph_memory_new(stream->device, bytes), bytes}};
    if (work.alloc.memory == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *address = graph_memory_address(work.alloc.memory);
    return graph_add(stream->capturing, &work, NULL);
}

ENTRY(cuMemAllocAsync, (CUdeviceptr *address, size_t bytes, CUstream stream), take(address, bytes, NULL, stream));
ALSO(cuMemAllocAsync_ptsz, cuMemAllocAsync);

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream) {
    ENTERED();
    if (pool == NULL) return CUDA_ERROR_INVALID_VALUE;
    return take(address, bytes, pool, stream);
}
ALSO(cuMemAllocFromPoolAsync_ptsz, cuMemAllocFromPoolAsync);

EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
    ENTERED();
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS || address == 0) return result;
    const struct stream *stream = stream_of(handle);
    if (stream->capturing != NULL)
        return graph_add(stream->capturing, &(struct work){.type = NODE_FREE, .free = address}, NULL);
    /* Only what was allocated in stream order may be freed in stream order. */
    if (pool_free(address) == CUDA_SUCCESS || graph_memory_free(address) == CUDA_SUCCESS) return CUDA_SUCCESS;
    /* A pointer imported from another process's pool. */
    return vmm_unmap_file(address / CARD_UNIT * CARD_UNIT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
ALSO(cuMemFreeAsync_ptsz, cuMemFreeAsync);

/* ---- capture ---- */

enum { CAPTURE_NONE = 0, CAPTURE_ACTIVE = 1 };

static CUresult begin(CUstream handle, CUgraph graph, int mode) {
    struct context *context;
    REQUIRE(context_current(&context));
    if (mode < 0 || mode > 2) return CUDA_ERROR_INVALID_VALUE;
    if ((uintptr_t)handle < 2) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; /* the legacy default stream */
    struct stream *stream = stream_of(handle);
    if (stream->capturing != NULL) return CUDA_ERROR_INVALID_VALUE;
    stream->capturing = graph != NULL ? graph : graph_new();
    return stream->capturing != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

ENTRY(cuStreamBeginCapture_v2, (CUstream stream, int mode), begin(stream, NULL, mode));
ALSO(cuStreamBeginCapture_v2_ptsz, cuStreamBeginCapture_v2);

ENTRY(cuStreamBeginCapture, (CUstream stream), begin(stream, NULL, 0));
ALSO(cuStreamBeginCapture_ptsz, cuStreamBeginCapture);

ENTRY(cuStreamBeginCaptureToGraph,
      (CUstream stream, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count, int mode),
      graph == NULL ? CUDA_ERROR_INVALID_VALUE : begin(stream, graph, mode));
ALSO(cuStreamBeginCaptureToGraph_ptsz, cuStreamBeginCaptureToGraph);

EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph) {
    ENTERED_READY();
    struct stream *stream = stream_of(handle);
    if (graph == NULL || stream->capturing == NULL) return CUDA_ERROR_INVALID_VALUE;
    *graph = stream->capturing;
    stream->capturing = NULL;
    return CUDA_SUCCESS;
}
ALSO(cuStreamEndCapture_ptsz, cuStreamEndCapture);

EXPORT CUresult cuStreamIsCapturing(CUstream handle, int *status) {
    ENTERED_READY();
    if (status == NULL) return CUDA_ERROR_INVALID_VALUE;
    *status = stream_of(handle)->capturing != NULL ? CAPTURE_ACTIVE : CAPTURE_NONE;
    return CUDA_SUCCESS;
}
ALSO(cuStreamIsCapturing_ptsz, cuStreamIsCapturing);

static CUresult info(CUstream handle, int *status, uint64_t *id, CUgraph *graph) {
    REQUIRE(sim_ready());
    if (status == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUgraph capturing = stream_of(handle)->capturing;
    *status = capturing != NULL ? CAPTURE_ACTIVE : CAPTURE_NONE;
    if (id != NULL) *id = (uintptr_t)capturing;
    if (graph != NULL) *graph = capturing;
    return CUDA_SUCCESS;
}

ENTRY(cuStreamGetCaptureInfo, (CUstream stream, int *status, uint64_t *id), info(stream, status, id, NULL));
ALSO(cuStreamGetCaptureInfo_ptsz, cuStreamGetCaptureInfo);

EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream stream, int *status, uint64_t *id, CUgraph *graph,
                                          const CUgraphNode **after, size_t *count) {
    ENTERED();
    if (after != NULL) *after = NULL;
    if (count != NULL) *count = 0;
    return info(stream, status, id, graph);
}
ALSO(cuStreamGetCaptureInfo_v2_ptsz, cuStreamGetCaptureInfo_v2);

EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream stream, int *status, uint64_t *id, CUgraph *graph,
                                          const CUgraphNode **after, const void **edges, size_t *count) {
    ENTERED();
    if (after != NULL) *after = NULL;
    if (edges != NULL) *edges = NULL;
    if (count != NULL) *count = 0;
    return info(stream, status, id, graph);
}
ALSO(cuStreamGetCaptureInfo_v3_ptsz, cuStreamGetCaptureInfo_v3);
