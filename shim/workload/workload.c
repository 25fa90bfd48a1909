/* The demo's program: takes GPU memory up to its limit, has the GPU turn over every bit of it, and checks each byte.
 *
 * It finds the driver by dlopen("libcuda.so.1") and brings its kernels as PTX text, so that the same file runs on a
 * real card and on the simulated one, in any image that has a C library.
 *
 * Exit status: 0 every byte was right, 1 something failed, 2 out of memory, 64 wrong usage. */
#include "compute.h"
#include "driver.h"
#include "options.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define BLOCK 256u
#define LOOK_NS 10000000 /* between two looks for a file that is waited for */
#define STAGE (8u << 20) /* how much is copied at once, so that the host needs little memory beside the card's */

static double mib(uint64_t bytes) { return (double)bytes / (1 << 20); }

/* ---- the work ---- */

struct chunk {
    CUdeviceptr address;
    uint64_t bytes;
};

/* The pattern of a chunk: a different word at each place, so that a copy to the wrong place shows. */
static uint64_t word(uint64_t chunk, uint64_t i) { return (chunk << 48 ^ i) * 0x9e3779b97f4a7c15ull; }

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* `bytes` from the options, or all that is free: inside a container, the quota less what the context took. */
static uint64_t how_much(const struct options *options) {
    if (options->bytes != 0) return options->bytes;
    size_t free_bytes, total;
    must(cuMemGetInfo_v2(&free_bytes, &total), "ask for the free memory");
    say("%.0f MiB free of %.0f MiB", mib(free_bytes), mib(total));
    return free_bytes;
}

/* The size of the i-th of `count` chunks. The card deals in blocks of 2 MiB: the last chunk takes what is left over. */
static uint64_t share(uint64_t bytes, unsigned count, unsigned i) {
    const uint64_t block = 2 << 20;
    uint64_t part = bytes / count;
    part = part >= block ? part / block * block : part / 8 * 8;
    return i + 1 < count ? part : (bytes - part * (count - 1)) / 8 * 8;
}

/* Takes the chunks; returns how many it got. */
static unsigned take(struct chunk *chunks, const struct options *options, uint64_t bytes) {
    for (unsigned i = 0; i < options->chunks; i++) {
        uint64_t part = share(bytes, options->chunks, i);
        double asked = now();
        CUresult result = cuMemAlloc_v2(&chunks[i].address, part);
        if (result == CUDA_ERROR_OUT_OF_MEMORY) {
            say("out of memory: chunk %u of %u, %.0f MiB", i + 1, options->chunks, mib(part));
            if (options->go_on && i > 0) return i;
            exit(EXIT_MEMORY);
        }
        must(result, "allocate");
        chunks[i].bytes = part;
        say("allocated chunk %u of %u, %.0f MiB, in %.3f ms", i + 1, options->chunks, mib(part), (now() - asked) * 1e3);
    }
    return options->chunks;
}

static void copy_in(const struct chunk *chunk, unsigned number, uint64_t *stage) {
    for (uint64_t done = 0; done < chunk->bytes; done += STAGE) {
        uint64_t part = least(STAGE, chunk->bytes - done);
        for (uint64_t i = 0; i < part / 8; i++) stage[i] = word(number, done / 8 + i);
        must(cuMemcpyHtoD_v2(chunk->address + done, stage, part), "copy in");
    }
}

static void complement(const struct chunk *chunk, void *kernel) {
    CUdeviceptr data = chunk->address;
    uint64_t words = chunk->bytes / 8;
    void *params[] = {&data, &words};
    unsigned grid = (unsigned)((words + BLOCK - 1) / BLOCK);
    must(cuLaunchKernel(kernel, grid, 1, 1, BLOCK, 1, 1, 0, NULL, params, NULL), "launch");
    must(cuCtxSynchronize(), "compute");
}

static uint64_t count_wrong(const struct chunk *chunk, unsigned number, uint64_t *stage) {
    uint64_t wrong = 0;
    for (uint64_t done = 0; done < chunk->bytes; done += STAGE) {
        uint64_t part = least(STAGE, chunk->bytes - done);
        must(cuMemcpyDtoH_v2(stage, chunk->address + done, part), "copy out");
        for (uint64_t i = 0; i < part / 8; i++) wrong += stage[i] != ~word(number, done / 8 + i);
    }
    return wrong;
}

static void *load_kernel(const char *name) {
    static void *module;
    void *kernel;
    if (module == NULL) must(cuModuleLoadData(&module, KERNELS), "load the kernels");
    must(cuModuleGetFunction(&kernel, module, name), "find the kernel");
    return kernel;
}

static void open_card(int ordinal) {
    int device;
    void *context;
    char name[128];
    must(cuInit(0), "initialise the driver");
    must(cuDeviceGet(&device, ordinal), "find the GPU");
    must(cuDeviceGetName(name, sizeof name, device), "ask for the GPU's name");
    must(cuDevicePrimaryCtxRetain(&context, device), "make a context");
    must(cuCtxSetCurrent(context), "use the context");
    say("context on GPU %d, %s", ordinal, name);
}

static bool work(const struct options *options) {
    struct chunk *chunks = calloc(options->chunks, sizeof *chunks);
    uint64_t *stage = malloc(STAGE), wrong = 0, bytes = 0;
    if (chunks == NULL || stage == NULL) {
        say("the host has no memory for %u chunks", options->chunks);
        exit(EXIT_WRONG);
    }
    void *turning = load_kernel("complement"), *computing = load_kernel("compute");
    unsigned count = take(chunks, options, how_much(options));
    for (unsigned i = 0; i < count; i++) {
        chunks[i].bytes = least(chunks[i].bytes, options->check); /* the rest is only held */
        copy_in(&chunks[i], i, stage);
        bytes += chunks[i].bytes;
    }
    say("copied in %.0f MiB", mib(bytes));
    if (options->hold > 0) {
        struct timespec hold = {(time_t)options->hold, (long)((options->hold - (double)(time_t)options->hold) * 1e9)};
        say("holding for %g s", options->hold);
        nanosleep(&hold, NULL);
    }
    if (options->until != NULL) {
        say("holding until there is %s", options->until);
        while (access(options->until, F_OK) != 0) nanosleep(&(struct timespec){0, LOOK_NS}, NULL);
    }
    if (options->compute > 0) compute(options, computing);
    for (unsigned i = 0; i < count; i++) complement(&chunks[i], turning);
    say("computed the complement");
    for (unsigned i = 0; i < count; i++) wrong += count_wrong(&chunks[i], i, stage);
    if (wrong > 0)
        say("WRONG: %llu of %llu words", (unsigned long long)wrong, (unsigned long long)bytes / 8);
    else
        say("copied out and checked %.0f MiB: every byte is right", mib(bytes));
    for (unsigned i = 0; i < count; i++) must(cuMemFree_v2(chunks[i].address), "free");
    free(stage);
    free(chunks);
    return wrong == 0;
}

int main(int count, char **words) {
    struct options options = options_read(count, words);
    say_from_here();
    load_driver();
    open_card(options.gpu);
    bool right = work(&options);
    must(cuDevicePrimaryCtxRelease_v2(options.gpu), "end the context");
    say("done");
    return right ? 0 : EXIT_WRONG;
}
