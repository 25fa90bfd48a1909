/* The demo's program: takes GPU memory up to its limit, has the GPU turn over every bit of it, and checks each byte.
 *
 * It finds the driver by dlopen("libcuda.so.1") and brings its one kernel as PTX text, so that the same file runs on a
 * real card and on the simulated one, in any image that has a C library.
 *
 * Exit status: 0 every byte was right, 1 something failed, 2 out of memory, 64 wrong usage. */
#include "options.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { EXIT_WRONG = 1, EXIT_MEMORY = 2 };
enum { CUDA_SUCCESS = 0, CUDA_ERROR_OUT_OF_MEMORY = 2 };

typedef int CUresult;
typedef unsigned long long CUdeviceptr;

/* The calls of the driver that this program makes; each becomes a pointer of the same name. */
#define DRIVER(call)                                                                                                   \
    call(cuInit, (unsigned flags)) call(cuDeviceGet, (int *device, int ordinal))                                       \
        call(cuDeviceGetName, (char *name, int length, int device))                                                    \
            call(cuDevicePrimaryCtxRetain, (void **context, int device))                                               \
                call(cuDevicePrimaryCtxRelease_v2, (int device)) call(cuCtxSetCurrent, (void *context))                \
                    call(cuCtxSynchronize, (void)) call(cuMemGetInfo_v2, (size_t *free_bytes, size_t *total))          \
                        call(cuMemAlloc_v2, (CUdeviceptr * address, size_t bytes)) call(cuMemFree_v2,                  \
                                                                                        (CUdeviceptr address))         \
                            call(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes))                    \
                                call(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes))                      \
                                    call(cuModuleLoadData, (void **module, const void *image))                         \
                                        call(cuModuleGetFunction, (void **function, void *module, const char *name))   \
                                            call(cuLaunchKernel,                                                       \
                                                 (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,   \
                                                  unsigned block_x, unsigned block_y, unsigned block_z,                \
                                                  unsigned shared_bytes, void *stream, void **params, void **extra))   \
                                                call(cuGetErrorName, (CUresult error, const char **name))

#define DECLARE(name, arguments) static CUresult(*name) arguments;
DRIVER(DECLARE)

static const char KERNEL[] = ".version 6.0\n"
                             ".target sm_50\n"
                             ".address_size 64\n"
                             ".visible .entry complement(.param .u64 data, .param .u64 words)\n"
                             "{\n"
                             "    .reg .pred %p<2>;\n"
                             "    .reg .b32 %r<4>;\n"
                             "    .reg .b64 %rd<9>;\n"
                             "    ld.param.u64 %rd1, [data];\n"
                             "    ld.param.u64 %rd2, [words];\n"
                             "    mov.u32 %r1, %ctaid.x;\n"
                             "    mov.u32 %r2, %ntid.x;\n"
                             "    mov.u32 %r3, %tid.x;\n"
                             "    cvt.u64.u32 %rd7, %r3;\n"
                             "    mul.wide.u32 %rd8, %r1, %r2;\n"
                             "    add.s64 %rd3, %rd8, %rd7;\n"
                             "    setp.ge.u64 %p1, %rd3, %rd2;\n"
                             "    @%p1 bra DONE;\n"
                             "    cvta.to.global.u64 %rd4, %rd1;\n"
                             "    shl.b64 %rd5, %rd3, 3;\n"
                             "    add.s64 %rd4, %rd4, %rd5;\n"
                             "    ld.global.u64 %rd6, [%rd4];\n"
                             "    not.b64 %rd6, %rd6;\n"
                             "    st.global.u64 [%rd4], %rd6;\n"
                             "DONE:\n"
                             "    ret;\n"
                             "}\n";

#define BLOCK 256u
#define STAGE (8u << 20) /* how much is copied at once, so that the host needs little memory beside the card's */

/* ---- telling ---- */

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static double begun;

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...) {
    va_list values;
    va_start(values, format);
    printf("%9.4f  ", now() - begun);
    vprintf(format, values);
    putchar('\n');
    fflush(stdout); /* a watcher reads these lines as they come */
    va_end(values);
}

static double mib(uint64_t bytes) { return (double)bytes / (1 << 20); }

/* Ends the program unless the call succeeded. */
static void must(CUresult result, const char *what) {
    if (result == CUDA_SUCCESS) return;
    const char *name = NULL;
    if (cuGetErrorName != NULL) cuGetErrorName(result, &name);
    say("%s: %s", what, name != NULL ? name : "failed");
    exit(result == CUDA_ERROR_OUT_OF_MEMORY ? EXIT_MEMORY : EXIT_WRONG);
}

static void load_driver(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) {
        say("no CUDA driver here: %s", dlerror());
        exit(EXIT_WRONG);
    }
#define FIND(call, arguments)                                                                                          \
    *(void **)&call = dlsym(driver, #call);                                                                            \
    if (call == NULL) {                                                                                                \
        say("this CUDA driver is too old: it has no " #call);                                                          \
        exit(EXIT_WRONG);                                                                                              \
    }
    DRIVER(FIND)
}

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

static void *load_kernel(void) {
    void *module, *kernel;
    must(cuModuleLoadData(&module, KERNEL), "load the kernel");
    must(cuModuleGetFunction(&kernel, module, "complement"), "find the kernel");
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
    void *kernel = load_kernel();
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
    for (unsigned i = 0; i < count; i++) complement(&chunks[i], kernel);
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
    begun = now();
    load_driver();
    open_card(options.gpu);
    bool right = work(&options);
    must(cuDevicePrimaryCtxRelease_v2(options.gpu), "end the context");
    say("done");
    return right ? 0 : EXIT_WRONG;
}
