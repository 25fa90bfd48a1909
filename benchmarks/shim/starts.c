/* What benchmarks/shim/startup.py runs: `starts COUNT`. So many processes start at once, each takes a context and a
 * first allocation and keeps them until all have. One line each: milliseconds of cuInit and the context, and of the
 * allocation. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long CUdeviceptr;
static int (*cuInit)(unsigned), (*cuDevicePrimaryCtxRetain)(void **, int), (*cuCtxSetCurrent)(void *);
static int (*cuMemAlloc)(CUdeviceptr *, size_t);

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
}

static void open_context(void) {
    void *context;
    must(cuInit(0), "cuInit");
    must(cuDevicePrimaryCtxRetain(&context, 0), "context");
    must(cuCtxSetCurrent(context), "use the context");
}

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
    if (words != 2) return 64;
    start((unsigned)atoi(word[1]));
    return 0;
}
