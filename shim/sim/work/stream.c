/* Streams and events. A process's kernels are done in the order in which they were given, whatever their streams: a
 * stream and an event only remember up to which one. */
#include "driver.h"

#include <stdlib.h>
#include <time.h>

struct event {
    unsigned flags;
    bool recorded;
    unsigned gpu;
    uint64_t end; /* 0: it is past, and `at` tells when it was seen to be */
    struct timespec at;
};

#define DISABLE_TIMING 2u
#define INTERPROCESS 4u

static CUresult working(void) {
    struct context *context;
    return context_current(&context);
}

/* NULL and the handles 1 and 2 name the default streams: the legacy one, and each thread's own. */
static bool is_made(CUstream stream) { return (uintptr_t)stream > 2; }

struct stream *stream_of(CUstream handle) {
    static _Thread_local struct stream legacy, own;
    if (is_made(handle)) return handle;
    struct stream *stream = (uintptr_t)handle == 2 ? &own : &legacy;
    struct context *context;
    if (context_current(&context) == CUDA_SUCCESS) {
        stream->context = context;
        stream->device = context->device;
    }
    return stream;
}

uint64_t stream_end(CUstream handle) {
    const struct stream *stream = stream_of(handle);
    return is_made(handle) ? stream->end : card_given(sim_gpu(stream->device));
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    ENTERED_IN(context);
    if (stream == NULL || flags > 1) return CUDA_ERROR_INVALID_VALUE;
    struct stream *made = calloc(1, sizeof *made);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct stream){.device = context->device, .context = context};
    *stream = made;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
    ENTERED();
    REQUIRE(working());
    if (!is_made(stream)) return CUDA_ERROR_INVALID_HANDLE;
    free(stream);
    pool_settle();
    return CUDA_SUCCESS;
}
ALSO(cuStreamDestroy, cuStreamDestroy_v2);

EXPORT CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) {
    ENTERED();
    REQUIRE(working());
    if (context == NULL) return CUDA_ERROR_INVALID_VALUE;
    *context = stream_of(stream)->context;
    return CUDA_SUCCESS;
}
ALSO(cuStreamGetCtx_ptsz, cuStreamGetCtx);

EXPORT CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext *context, void **green) {
    ENTERED();
    REQUIRE(working());
    if (context == NULL) return CUDA_ERROR_INVALID_VALUE;
    *context = stream_of(stream)->context;
    if (green != NULL) *green = NULL;
    return CUDA_SUCCESS;
}
ALSO(cuStreamGetCtx_v2_ptsz, cuStreamGetCtx_v2);

EXPORT CUresult cuStreamGetDevice(CUstream stream, CUdevice *device) {
    ENTERED();
    REQUIRE(working());
    if (device == NULL) return CUDA_ERROR_INVALID_VALUE;
    *device = stream_of(stream)->device;
    return CUDA_SUCCESS;
}
ALSO(cuStreamGetDevice_ptsz, cuStreamGetDevice);

EXPORT CUresult cuStreamSynchronize(CUstream stream) {
    LOOKS();
    REQUIRE(working());
    if (stream_of(stream)->capturing != NULL) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    card_wait(sim_gpu(stream_of(stream)->device), stream_end(stream), 0);
    pool_settle();
    return CUDA_SUCCESS;
}
ALSO(cuStreamSynchronize_ptsz, cuStreamSynchronize);

EXPORT CUresult cuStreamQuery(CUstream stream) {
    LOOKS();
    REQUIRE(working());
    return card_reached(sim_gpu(stream_of(stream)->device), stream_end(stream)) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
ALSO(cuStreamQuery_ptsz, cuStreamQuery);

EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    ENTERED();
    if (event == NULL) return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = working();
    if (result != CUDA_SUCCESS || event->end == 0) return result;
    struct stream *waiting = stream_of(stream);
    /* Another GPU has another clock: then it is the caller who waits. */
    if (event->gpu != sim_gpu(waiting->device))
        card_wait(event->gpu, event->end, 0);
    else if (waiting->end < event->end)
        waiting->end = event->end;
    return CUDA_SUCCESS;
}
ALSO(cuStreamWaitEvent_ptsz, cuStreamWaitEvent);

EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags) {
    ENTERED();
    REQUIRE(working());
    if (event == NULL) return CUDA_ERROR_INVALID_VALUE;
    struct event *made = calloc(1, sizeof *made);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    made->flags = flags;
    *event = made;
    return CUDA_SUCCESS;
}

/* Between processes: the other's event knows what this one knew when its handle was made. */
struct event_handle {
    struct event event;
    unsigned char rest[64 - sizeof(struct event)];
};
_Static_assert(sizeof(struct event_handle) == 64, "CUDA's layout");

EXPORT CUresult cuIpcGetEventHandle(struct event_handle *handle, CUevent event) {
    ENTERED();
    REQUIRE(working());
    if (handle == NULL || event == NULL || !(event->flags & INTERPROCESS)) return CUDA_ERROR_INVALID_VALUE;
    *handle = (struct event_handle){.event = *event};
    gate_share(+1);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuIpcOpenEventHandle(CUevent *event, struct event_handle handle) {
    ENTERED();
    REQUIRE(cuEventCreate(event, handle.event.flags));
    **event = handle.event;
    gate_share(+1);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
    ENTERED();
    REQUIRE(working());
    if (event == NULL) return CUDA_ERROR_INVALID_HANDLE;
    event->recorded = true;
    event->gpu = sim_gpu(stream_of(stream)->device);
    event->end = stream_end(stream);
    clock_gettime(CLOCK_MONOTONIC, &event->at);
    return CUDA_SUCCESS;
}
ALSO(cuEventRecord_ptsz, cuEventRecord);

static bool is_past(CUevent event) {
    if (event->end == 0) return true;
    if (!card_reached(event->gpu, event->end)) return false;
    event->end = 0;
    clock_gettime(CLOCK_MONOTONIC, &event->at);
    return true;
}

EXPORT CUresult cuEventQuery(CUevent event) {
    LOOKS();
    if (event == NULL) return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = working();
    return result != CUDA_SUCCESS || is_past(event) ? result : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuEventSynchronize(CUevent event) {
    LOOKS();
    if (event == NULL) return CUDA_ERROR_INVALID_HANDLE;
    card_wait(event->gpu, event->end, 0);
    is_past(event);
    pool_settle();
    return working();
}

EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent begin, CUevent end) {
    LOOKS();
    if (begin == NULL || end == NULL) return CUDA_ERROR_INVALID_HANDLE;
    if (milliseconds == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!begin->recorded || !end->recorded || ((begin->flags | end->flags) & DISABLE_TIMING))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!is_past(begin) || !is_past(end)) return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)((double)(end->at.tv_sec - begin->at.tv_sec) * 1e3 +
                            (double)(end->at.tv_nsec - begin->at.tv_nsec) / 1e6);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent begin, CUevent end) {
    LOOKS();
    return cuEventElapsedTime_v2(milliseconds, begin, end);
}
