/* Work that a stream is given: copies, sets, kernels, functions of the host. It is done before the call returns, or
 * noted down where the stream captures. Only computing takes time: it goes on after its call has returned. */
#include "driver.h"

#include <string.h>

static void *host(CUdeviceptr address) { return (void *)(uintptr_t)address; }

static CUresult copy(CUdeviceptr to, CUdeviceptr from, uint64_t bytes) {
    memmove(host(to), host(from), bytes);
    return CUDA_SUCCESS;
}

static CUresult set(CUdeviceptr to, uint32_t value, uint64_t width, uint64_t count) {
    if (width == 1) memset(host(to), (int)value, count);
    for (uint64_t i = 0; width == 2 && i < count; i++) ((uint16_t *)host(to))[i] = (uint16_t)value;
    for (uint64_t i = 0; width == 4 && i < count; i++) ((uint32_t *)host(to))[i] = value;
    return CUDA_SUCCESS;
}

/* complement(data, words): thread i turns over every bit of the i-th 64-bit word, if there is one. */
static CUresult complement(uint64_t threads, CUdeviceptr data, uint64_t words) {
    uint64_t bytes;
    if (words > threads) words = threads;
    if (data % 8 != 0 || __builtin_mul_overflow(words, 8, &bytes) || !address_covers(data, bytes))
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    uint64_t *word = (uint64_t *)(uintptr_t)data;
    for (uint64_t i = 0; i < words; i++) word[i] = ~word[i];
    return CUDA_SUCCESS;
}

/* compute(rounds, nanoseconds): on a card of its own it takes so long, by its own word: on a real card the rounds. */
static void compute(CUstream handle, uint64_t nanoseconds) {
    struct stream *stream = stream_of(handle);
    stream->end = card_compute(sim_gpu(stream->device), nanoseconds);
}

/* A kernel of the simulated NCCL's: collective.c. */
static void meet(CUstream handle, const struct launch *launch) {
    struct stream *stream = stream_of(handle);
    unsigned channel = (unsigned)(launch->words[0] >> 32), rank = (unsigned)launch->words[0];
    stream->end = card_meet(sim_gpu(stream->device), channel, rank, launch->words[1]);
}

static CUresult run_kernel(CUstream stream, const struct launch *launch) {
    struct context *context;
    CUresult result = context_current(&context);
    if (launch->kernel == KERNEL_COMPUTE) {
        if (result == CUDA_SUCCESS) compute(stream, launch->words[1]);
        return result;
    }
    if (launch->kernel == KERNEL_COLLECTIVE) {
        if (result == CUDA_SUCCESS) meet(stream, launch);
        return result;
    }
    /* As on a card, a bad address shows at the next call, and the context stays broken. */
    if (result == CUDA_SUCCESS) context->broken = complement(launch->threads, launch->words[0], launch->words[1]);
    return result;
}

CUresult work_run(CUstream stream, const struct work *work) {
    switch (work->type) {
        case NODE_KERNEL:
            return run_kernel(stream, &work->launch);
        case NODE_COPY:
            return copy(work->copy.to, work->copy.from, work->copy.bytes);
        case NODE_SET:
            return set(work->set.to, (uint32_t)work->set.value, work->set.width, work->set.count);
        case NODE_HOST:
            card_wait(sim_gpu(stream_of(stream)->device), stream_end(stream), 0);
            work->host.function(work->host.data);
            return CUDA_SUCCESS;
        case NODE_ALLOC:
            return graph_memory_take(work->alloc.memory, false);
        case NODE_FREE:
            return address_free(work->free);
        default:
            return CUDA_SUCCESS; /* an empty node; child graphs were taken apart at instantiation */
    }
}

CUresult work_submit(CUstream stream, const struct work *work) {
    CUgraph graph = stream_of(stream)->capturing;
    return graph == NULL ? work_run(stream, work) : graph_add(graph, work, NULL);
}
