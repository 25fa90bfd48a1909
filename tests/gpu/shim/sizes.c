/* What cuMemAlloc of one size takes in one process, natively and through whatever is preloaded, in turns.
 *
 *   sizes ROUNDS MIB…     one line per call: "MIB KIND TAKEN INSIDE FREED FAULTS ADDRESS", times in nanoseconds
 *
 * KIND "driver": the driver's own function; "seen": the one that programs are given. INSIDE: of a seen call, how long
 * the driver's own part of it took, where inside.c is loaded behind the shim; else −1. FREED: the free after it.
 * FAULTS: page faults of the call. ADDRESS: what it got. Driver API only, so that it needs no nvcc and runs on the
 * simulated card too. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

typedef unsigned long long CUdeviceptr;
typedef void *dlsym_function(void *, const char *);
typedef int alloc_function(CUdeviceptr *, size_t);
typedef int free_function(CUdeviceptr);

static long now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000000L + at.tv_nsec;
}

static long faults(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
}

static void must(int result, const char *what) {
    if (result == 0) return;
    fprintf(stderr, "%s: error %d\n", what, result);
    exit(1);
}

/* A function as the C library's own dlsym finds it, or as the one that programs see does. */
static void *find(int own, const char *name) {
    static const char *const versions[] = {"GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.34"};
    dlsym_function *look = own ? NULL : dlsym;
    void *libc = dlopen("libc.so.6", RTLD_LAZY), *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    for (int at = 0; !look && at < 3; at++) look = (dlsym_function *)dlvsym(libc, "dlsym", versions[at]);
    void *found = look && driver ? look(driver, name) : NULL;
    must(!found, name);
    return found;
}

static alloc_function *alloc[2];
static free_function *drop[2];
static long *inside; /* inside.c's, if it is loaded */

static void once(size_t mib, int seen) {
    CUdeviceptr address;
    if (inside) *inside = -1;
    long faults_before = faults(), begin = now();
    must(alloc[seen](&address, mib << 20), "cuMemAlloc");
    long end = now(), fault_count = faults() - faults_before, part = inside ? *inside : -1;
    long free_begin = now();
    must(drop[seen](address), "cuMemFree");
    printf("%zu %s %ld %ld %ld %ld %llx\n", mib, seen ? "seen" : "driver", end - begin, seen ? part : -1,
           now() - free_begin, fault_count, address);
}

int main(int count, char **words) {
    void *context;
    for (int seen = 0; seen < 2; seen++) {
        alloc[seen] = (alloc_function *)find(!seen, "cuMemAlloc_v2");
        drop[seen] = (free_function *)find(!seen, "cuMemFree_v2");
    }
    must(((int (*)(unsigned))find(0, "cuInit"))(0), "cuInit");
    must(((int (*)(void **, int))find(0, "cuDevicePrimaryCtxRetain"))(&context, 0), "context");
    must(((int (*)(void *))find(0, "cuCtxSetCurrent"))(context), "use the context");
    inside = dlsym(RTLD_DEFAULT, "inside_took");
    static char buffer[1 << 22]; /* so that nothing is written between two calls */
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    int rounds = count > 1 ? atoi(words[1]) : 0;
    for (int at = 2; at < count; at++) {
        size_t mib = strtoul(words[at], NULL, 10);
        for (int round = -5; round < rounds; round++) { /* the first ones are printed too: they are the warming */
            once(mib, round & 1);
            once(mib, !(round & 1));
        }
    }
    return 0;
}
