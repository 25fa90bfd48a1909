/* What benchmarks/shim/threads.py and benchmarks/shim/startup.py run: driver calls, timed from within.
 *
 *   calls pairs          reads "THREADS COUNT BYTES ASYNC" lines; so many threads each allocate and free COUNT times,
 *                        at once, from the stream-ordered pool if ASYNC is 1; answers with the nanoseconds of one
 *                        pair, all threads taken together
 *   calls start COUNT    COUNT processes start at once, each takes a context and a first allocation and keeps them
 * until all have; one line each: milliseconds of cuInit and the context, and of the allocation */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long CUdeviceptr;
static int (*cuInit)(unsigned), (*cuDevicePrimaryCtxRetain)(void **, int), (*cuCtxSetCurrent)(void *);
static int (*cuMemAlloc)(CUdeviceptr *, size_t), (*cuMemFree)(CUdeviceptr);
static int (*cuMemAllocAsync)(CUdeviceptr *, size_t, void *), (*cuMemFreeAsync)(CUdeviceptr, void *);
static void *context;

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec * 1e9 + (double)at.tv_nsec;
}

static void must(int result, const char *what) {
    if (result == 0) return;
    fprintf(stderr, "%s: CUDA error %d\n", what, result);
    exit(1);
}

static void load(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    *(void **)&cuInit = dlsym(driver, "cuInit");
    *(void **)&cuDevicePrimaryCtxRetain = dlsym(driver, "cuDevicePrimaryCtxRetain");
    *(void **)&cuCtxSetCurrent = dlsym(driver, "cuCtxSetCurrent");
    *(void **)&cuMemAlloc = dlsym(driver, "cuMemAlloc_v2");
    *(void **)&cuMemFree = dlsym(driver, "cuMemFree_v2");
    *(void **)&cuMemAllocAsync = dlsym(driver, "cuMemAllocAsync");
    *(void **)&cuMemFreeAsync = dlsym(driver, "cuMemFreeAsync");
}

static void open_context(void) {
    must(cuInit(0), "cuInit");
    must(cuDevicePrimaryCtxRetain(&context, 0), "context");
    must(cuCtxSetCurrent(context), "use the context");
}

/* ---- pairs ---- */

static pthread_barrier_t begin;
static unsigned long count;
static size_t bytes;
static int async;

struct worker {
    pthread_t thread;
    double begun, ended; /* its own clock readings: the main thread may be late */
};

static void *work(void *given) {
    struct worker *worker = given;
    must(cuCtxSetCurrent(context), "use the context");
    pthread_barrier_wait(&begin);
    worker->begun = now();
    for (unsigned long i = 0; i < count; i++) {
        CUdeviceptr address;
        must(async ? cuMemAllocAsync(&address, bytes, NULL) : cuMemAlloc(&address, bytes), "allocate");
        must(async ? cuMemFreeAsync(address, NULL) : cuMemFree(address), "free");
    }
    worker->ended = now();
    return NULL;
}

static double pairs(unsigned threads) {
    struct worker worker[256];
    pthread_barrier_init(&begin, NULL, threads);
    for (unsigned i = 0; i < threads; i++) pthread_create(&worker[i].thread, NULL, work, &worker[i]);
    double begun = 0, ended = 0;
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(worker[i].thread, NULL);
        if (i == 0 || worker[i].begun < begun) begun = worker[i].begun;
        if (i == 0 || worker[i].ended > ended) ended = worker[i].ended;
    }
    pthread_barrier_destroy(&begin);
    return (ended - begun) / ((double)threads * (double)count);
}

static void serve_pairs(void) {
    load();
    open_context();
    CUdeviceptr keep; /* a live block, so that small requests find one */
    must(cuMemAlloc(&keep, 512), "allocate");
    must(cuMemAllocAsync(&keep, 512, NULL), "allocate"); /* and the pool has room */
    unsigned threads;
    while (scanf("%u %lu %zu %d", &threads, &count, &bytes, &async) == 4 && threads >= 1 && threads <= 256) {
        printf("%.1f\n", pairs(threads));
        fflush(stdout);
    }
}

/* ---- starts ---- */

static void start_one(int go, int out, int stay) {
    char byte;
    if (read(go, &byte, 1) != 1) _exit(1);
    double begun = now();
    load();
    open_context();
    double opened = now();
    CUdeviceptr address;
    must(cuMemAlloc(&address, 1 << 20), "allocate");
    double allocated = now();
    char line[64];
    int length = snprintf(line, sizeof line, "%.3f %.3f\n", (opened - begun) / 1e6, (allocated - opened) / 1e6);
    if (write(out, line, (size_t)length) != length) _exit(1);
    _exit(read(stay, &byte, 1) == 0 ? 0 : 1);
}

static void start(unsigned processes) {
    int go[2], out[2], stay[2];
    if (pipe(go) != 0 || pipe(out) != 0 || pipe(stay) != 0) exit(1);
    for (unsigned i = 0; i < processes; i++) {
        if (fork() != 0) continue;
        close(stay[1]);
        start_one(go[0], out[1], stay[0]);
    }
    char *everyone = calloc(processes, 1);
    if (everyone == NULL || write(go[1], everyone, processes) != (ssize_t)processes) exit(1);
    FILE *lines = fdopen(out[0], "r");
    char line[64];
    for (unsigned i = 0; i < processes && fgets(line, sizeof line, lines) != NULL; i++) fputs(line, stdout);
    fflush(stdout);
    close(stay[1]); /* all may end */
    while (wait(NULL) > 0) {
    }
}

int main(int words, char **word) {
    if (words == 2 && strcmp(word[1], "pairs") == 0)
        serve_pairs();
    else if (words == 3 && strcmp(word[1], "start") == 0)
        start((unsigned)atoi(word[2]));
    else
        return 64;
    return 0;
}
