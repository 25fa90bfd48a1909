/* How many instructions of the shim a call executes, exactly: the program is stepped through it one by one, and those
 * inside libgpushare.so are counted, what it calls in libc and in the driver apart.
 *
 *   steps       one line per call, "NAME INSTRUCTIONS"; run it with the shim loaded
 *
 * The same on every run and on every machine, unlike nanoseconds. For x86-64 and aarch64. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

typedef unsigned long long CUdeviceptr;

static void must(int result, const char *what) {
    if (result == 0) return;
    fprintf(stderr, "%s: error %d\n", what, result);
    _exit(1);
}

static void *of_driver(const char *name) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *found = driver ? dlsym(driver, name) : NULL;
    must(found == NULL, name);
    return found;
}

/* ---- the program that is stepped through: every call several times, of which the fewest count:
 * where the ledger makes room is not the way of an allocation, and where it looks depends on the address ---- */

#define TIMES 32
/* What is between these is counted. */
#define BEGIN() raise(SIGUSR1)
#define END() raise(SIGUSR2)
#define MEASURED(call)                                                                                                 \
    do {                                                                                                               \
        BEGIN();                                                                                                       \
        must(call, #call);                                                                                             \
        END();                                                                                                         \
    } while (0)

static const char *const names[] = {"cuMemAlloc 4 KiB",  "cuMemFree 4 KiB",       "cuMemAlloc 128 MiB",
                                    "cuMemFree 128 MiB", "cuMemAllocAsync 4 KiB", "cuMemFreeAsync",
                                    "cuMemGetInfo"};
#define CALLS (sizeof names / sizeof *names)

static void program(void) {
    int (*cuInit)(unsigned) = (int (*)(unsigned))of_driver("cuInit");
    int (*retain)(void **, int) = (int (*)(void **, int))of_driver("cuDevicePrimaryCtxRetain");
    int (*set)(void *) = (int (*)(void *))of_driver("cuCtxSetCurrent");
    int (*alloc)(CUdeviceptr *, size_t) = (int (*)(CUdeviceptr *, size_t))of_driver("cuMemAlloc_v2");
    int (*drop)(CUdeviceptr) = (int (*)(CUdeviceptr))of_driver("cuMemFree_v2");
    int (*alloc_async)(CUdeviceptr *, size_t, void *) =
        (int (*)(CUdeviceptr *, size_t, void *))of_driver("cuMemAllocAsync");
    int (*drop_async)(CUdeviceptr, void *) = (int (*)(CUdeviceptr, void *))of_driver("cuMemFreeAsync");
    int (*info)(size_t *, size_t *) = (int (*)(size_t *, size_t *))of_driver("cuMemGetInfo_v2");
    void *context;
    CUdeviceptr held, address;
    size_t a, b;
    must(cuInit(0), "cuInit");
    must(retain(&context, 0), "context");
    must(set(context), "use the context");
    must(alloc(&held, 4096), "allocate");
    must(alloc_async(&held, 1 << 20, NULL), "allocate");
    for (int time = 0; time < TIMES; time++) {
        size_t sizes[] = {4096, 128 << 20};
        for (int size = 0; size < 2; size++) {
            MEASURED(alloc(&address, sizes[size]));
            MEASURED(drop(address));
        }
        MEASURED(alloc_async(&address, 4096, NULL));
        MEASURED(drop_async(address, NULL));
        MEASURED(info(&a, &b));
    }
    _exit(0);
}

/* ---- who steps ---- */

static uint64_t where(pid_t child) {
    struct user_regs_struct registers;
    struct iovec all = {&registers, sizeof registers};
    must(ptrace(PTRACE_GETREGSET, child, NT_PRSTATUS, &all) < 0, "registers");
#if defined(__x86_64__)
    return registers.rip;
#else
    return registers.pc;
#endif
}

/* The part of the child's memory that holds the shim's instructions. */
static void find_shim(pid_t child, uint64_t *begin, uint64_t *end) {
    char path[64], line[4096], rights[8];
    snprintf(path, sizeof path, "/proc/%d/maps", child);
    FILE *maps = fopen(path, "r");
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx %7s", &from, &to, rights) == 3 && strchr(rights, 'x') &&
            strstr(line, "/libgpushare")) {
            *begin = from;
            *end = to;
        }
    }
    if (maps) fclose(maps);
    must(*end == 0, "the shim is not loaded");
}

int main(void) {
    pid_t child = fork();
    if (child == 0) {
        must(ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0, "ptrace");
        program();
    }
    uint64_t begin = 0, end = 0, counted[CALLS * TIMES] = {0};
    size_t call = 0;
    int status, stepping = 0;
    while (waitpid(child, &status, 0) == child && !WIFEXITED(status) && !WIFSIGNALED(status)) {
        int signal = WSTOPSIG(status), pass = 0;
        if (signal == SIGUSR1) {
            if (!end) find_shim(child, &begin, &end);
            stepping = 1;
        } else if (signal == SIGUSR2) {
            stepping = 0;
            call++;
        } else if (signal != SIGTRAP) {
            pass = signal;
        }
        if (stepping) {
            uint64_t at = where(child);
            if (at >= begin && at < end && call < CALLS * TIMES) counted[call]++;
        }
        ptrace(stepping ? PTRACE_SINGLESTEP : PTRACE_CONT, child, NULL, (void *)(intptr_t)pass);
    }
    must(!WIFEXITED(status) || WEXITSTATUS(status) != 0 || call != CALLS * TIMES, "the program ended early");
    for (size_t at = 0; at < CALLS; at++) {
        uint64_t fewest = counted[at];
        for (size_t time = 1; time < TIMES; time++)
            if (counted[CALLS * time + at] < fewest) fewest = counted[CALLS * time + at];
        printf("%s %lu\n", names[at], (unsigned long)fewest);
    }
    return 0;
}
