/* Finding the real functions of the driver, of NVML and of NCCL. */
#ifndef GPUSHARE_RESOLVE_H
#define GPUSHARE_RESOLVE_H

#include "hooks.h"

#include <stdatomic.h>
#include <stdbool.h>

/* Every call that the shim knows, by its number. */
extern const struct call {
    const char *name;
    enum library { CUDA, NVML, NCCL } library;
} calls[CALL_COUNT];

extern _Atomic(void *) real_address[CALL_COUNT];

/* Finds a real function; one that the driver does not have becomes one that says so. */
__attribute__((cold, noinline)) void *real_find(enum hook hook);

/* True if the installed driver has the call. */
bool real_exists(enum hook hook);

/* True if the program has loaded the library of a call, and that has it. Loads nothing. */
bool real_loaded(enum hook hook);

/* NCCL is the program's own library, of any name and perhaps there twice. The wrappers stand for the one that is called
 * first. True if that has this function at this address. */
bool real_nccl(const char *name, void *address);

static inline void *real_function(enum hook hook) {
    void *address = atomic_load_explicit(&real_address[hook], memory_order_acquire);
    return address ? address : real_find(hook);
}

/* The driver's own function: REAL(cuMemFree_v2)(address) */
#define REAL(name) ((name##_function *)real_function(HOOK_##name))

/* The next dlsym behind ours: the C library's. */
typedef void *dlsym_function(void *handle, const char *name);
dlsym_function *real_dlsym(void);

/* What that has found; NULL before. */
extern __attribute__((visibility("hidden"))) dlsym_function *gpushare_next_dlsym;

#endif
