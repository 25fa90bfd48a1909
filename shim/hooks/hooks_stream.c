/* Streams: which of them are being captured into a graph, where nothing is allocated yet, and that one has gone, since
 * threads remember which pool a stream allocates from. */
#include "hooks_stream.h"

#include "charging/devices.h"
#include "fork.h"
#include "gate/tallies.h"
#include "resolve.h"

_Atomic int streams_captures;

bool streams_ask(CUstream stream) {
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    return REAL(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

uint64_t streams_capture_number(CUstream stream) {
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    uint64_t number = 0;
    bool asked = REAL(cuStreamGetCaptureInfo)(stream, &status, &number) == CUDA_SUCCESS;
    return asked && status != CU_STREAM_CAPTURE_STATUS_NONE ? number + 1 : 0;
}

static void streams_forget(void) { atomic_store(&streams_captures, 0); }
FORGET_IN_CHILD(streams_forget);

static CUresult began(CUresult result) {
    if (result == CUDA_SUCCESS) atomic_fetch_add(&streams_captures, 1);
    return result;
}

int cuStreamBeginCapture(CUstream stream) { return began(REAL(cuStreamBeginCapture)(stream)); }

int cuStreamBeginCapture_ptsz(CUstream stream) { return began(REAL(cuStreamBeginCapture_ptsz)(stream)); }

int cuStreamBeginCapture_v2(CUstream stream, int mode) { return began(REAL(cuStreamBeginCapture_v2)(stream, mode)); }

int cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode) {
    return began(REAL(cuStreamBeginCapture_v2_ptsz)(stream, mode));
}

int cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *before, const void *edges,
                                size_t count, int mode) {
    return began(REAL(cuStreamBeginCaptureToGraph)(stream, graph, before, edges, count, mode));
}

int cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *before, const void *edges,
                                     size_t count, int mode) {
    return began(REAL(cuStreamBeginCaptureToGraph_ptsz)(stream, graph, before, edges, count, mode));
}

/* An end that reports an invalidated capture has ended it all the same. */
static CUresult ended(CUstream stream, bool was, CUresult result) {
    if (was && !streams_capturing(stream)) atomic_fetch_sub(&streams_captures, 1);
    return result;
}

/* What was captured of NCCL's is the graph's from now on. */
static CUresult captured(CUstream stream, uint64_t capture, CUresult result, const CUgraph *graph) {
    if (capture && result == CUDA_SUCCESS) {
        tally_pass_on(TALLY_CAPTURE, capture, TALLY_GRAPH, (uint64_t)(uintptr_t)*graph);
        tally_drop(TALLY_CAPTURE, capture);
    }
    return ended(stream, capture, result);
}

int cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    uint64_t capture = streams_capture(stream);
    return captured(stream, capture, REAL(cuStreamEndCapture)(stream, graph), graph);
}

int cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    uint64_t capture = streams_capture(PER_THREAD(stream));
    return captured(PER_THREAD(stream), capture, REAL(cuStreamEndCapture_ptsz)(stream, graph), graph);
}

int cuStreamDestroy(CUstream stream) {
    devices_changed(); /* before another stream can have its handle */
    return REAL(cuStreamDestroy)(stream);
}

int cuStreamDestroy_v2(CUstream stream) {
    devices_changed(); /* before another stream can have its handle */
    return REAL(cuStreamDestroy_v2)(stream);
}
