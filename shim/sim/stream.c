/* Streams and events. The simulated card does all work at once, so they only have to behave. */
#include "driver.h"

#include <stdlib.h>
#include <time.h>

#define ALSO(name, of) extern __typeof__(of) name __attribute__((alias(#of), visibility("default")))

struct stream {
    unsigned flags;
    int priority;
    struct context *context;
};

struct event {
    unsigned flags;
    bool recorded;
    struct timespec at;
};

#define DISABLE_TIMING 2u

static CUresult working(void) {
    struct context *context;
    return context_current(&context);
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (stream == NULL || flags > 1) return CUDA_ERROR_INVALID_VALUE;
    struct stream *made = calloc(1, sizeof *made);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct stream){.flags = flags, .priority = priority, .context = context};
    *stream = made;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }

/* NULL and the two handles 1 and 2 name the default streams. */
static bool made(CUstream stream) { return (uintptr_t)stream > 2; }

EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
    CUresult result = working();
    if (result != CUDA_SUCCESS) return result;
    if (!made(stream)) return CUDA_ERROR_INVALID_HANDLE;
    free(stream);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamSynchronize(CUstream stream) {
    (void)stream;
    return working();
}
ALSO(cuStreamSynchronize_ptsz, cuStreamSynchronize);

EXPORT CUresult cuStreamQuery(CUstream stream) {
    (void)stream;
    return working();
}
ALSO(cuStreamQuery_ptsz, cuStreamQuery);

EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    (void)stream;
    (void)flags;
    return event == NULL ? CUDA_ERROR_INVALID_HANDLE : working();
}
ALSO(cuStreamWaitEvent_ptsz, cuStreamWaitEvent);

EXPORT CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *data) {
    (void)stream;
    CUresult result = working();
    if (result != CUDA_SUCCESS) return result;
    if (function == NULL) return CUDA_ERROR_INVALID_VALUE;
    function(data);
    return CUDA_SUCCESS;
}
ALSO(cuLaunchHostFunc_ptsz, cuLaunchHostFunc);

EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags) {
    CUresult result = working();
    if (result != CUDA_SUCCESS) return result;
    if (event == NULL) return CUDA_ERROR_INVALID_VALUE;
    struct event *made = calloc(1, sizeof *made);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    made->flags = flags;
    *event = made;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy_v2(CUevent event) {
    if (event == NULL) return CUDA_ERROR_INVALID_HANDLE;
    free(event);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
    (void)stream;
    CUresult result = working();
    if (result != CUDA_SUCCESS) return result;
    if (event == NULL) return CUDA_ERROR_INVALID_HANDLE;
    event->recorded = true;
    clock_gettime(CLOCK_MONOTONIC, &event->at);
    return CUDA_SUCCESS;
}
ALSO(cuEventRecord_ptsz, cuEventRecord);

EXPORT CUresult cuEventQuery(CUevent event) { return event == NULL ? CUDA_ERROR_INVALID_HANDLE : working(); }
EXPORT CUresult cuEventSynchronize(CUevent event) { return event == NULL ? CUDA_ERROR_INVALID_HANDLE : working(); }

EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent begin, CUevent end) {
    if (begin == NULL || end == NULL) return CUDA_ERROR_INVALID_HANDLE;
    if (milliseconds == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!begin->recorded || !end->recorded || ((begin->flags | end->flags) & DISABLE_TIMING))
        return CUDA_ERROR_INVALID_HANDLE;
    *milliseconds = (float)((double)(end->at.tv_sec - begin->at.tv_sec) * 1e3 +
                            (double)(end->at.tv_nsec - begin->at.tv_nsec) / 1e6);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent begin, CUevent end) {
    return cuEventElapsedTime_v2(milliseconds, begin, end);
}
