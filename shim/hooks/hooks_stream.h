/* Whether a stream is being captured into a graph. */
#ifndef GPUSHARE_HOOKS_STREAM_H
#define GPUSHARE_HOOKS_STREAM_H

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>

/* Captures of this process that have begun and not ended; one that is abandoned stays counted, which costs time
 * only. */
extern _Atomic int streams_captures;

/* What a NULL stream means to the calls whose name ends in _ptsz. */
#define PER_THREAD(stream) ((stream) ? (stream) : (CUstream)2)

__attribute__((cold, noinline)) bool streams_ask(CUstream stream);

/* Asks the driver only while there is a capture anywhere: a stream joins one by waiting for an event. */
static inline bool streams_capturing(CUstream stream) {
    return atomic_load_explicit(&streams_captures, memory_order_relaxed) > 0 && streams_ask(stream);
}

/* The number of the capture that the stream is in, and one more; 0: none. */
__attribute__((cold, noinline)) uint64_t streams_capture_number(CUstream stream);

static inline uint64_t streams_capture(CUstream stream) {
    return atomic_load_explicit(&streams_captures, memory_order_relaxed) > 0 ? streams_capture_number(stream) : 0;
}

#endif
