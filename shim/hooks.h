/* THE table of intercepted calls. Everything else about them comes from here: the wrappers' declarations, the real
 * functions' pointers, and what `dlsym` and `cuGetProcAddress` hand out instead.
 *
 *     X(library, name, parameters)
 *
 * To intercept one more call: add its line, write its wrapper in one of hooks_*.c, add its row to README.md. All
 * return CUresult or nvmlReturn_t, which are both int.
 */
#ifndef GPUSHARE_HOOKS_H
#define GPUSHARE_HOOKS_H

#include "cuda_abi.h"

#include <stdatomic.h>

#define HOOKS(X)                                                                                                       \
    HOOKS_ENTRY(X)                                                                                                     \
    HOOKS_MEMORY(X)                                                                                                    \
    HOOKS_CONTEXT(X)                                                                                                   \
    HOOKS_REPORT(X)

/* Ways to get at the other calls: hooks_entry.c */
#define HOOKS_ENTRY(X)                                                                                                 \
    X(CUDA, cuGetProcAddress, (const char *name, void **address, int version, uint64_t flags))                         \
    X(CUDA, cuGetProcAddress_v2, (const char *name, void **address, int version, uint64_t flags, int *status))

/* hooks_memory.c */
#define HOOKS_MEMORY(X)                                                                                                \
    X(CUDA, cuMemAlloc, (CUdeviceptr_v1 * address, unsigned int bytes))                                                \
    X(CUDA, cuMemAlloc_v2, (CUdeviceptr * address, size_t bytes))                                                      \
    X(CUDA, cuMemAllocPitch,                                                                                           \
      (CUdeviceptr_v1 * address, unsigned int *pitch, unsigned int width, unsigned int height, unsigned int element))  \
    X(CUDA, cuMemAllocPitch_v2,                                                                                        \
      (CUdeviceptr * address, size_t *pitch, size_t width, size_t height, unsigned int element))                       \
    X(CUDA, cuMemAllocManaged, (CUdeviceptr * address, size_t bytes, unsigned int flags))                              \
    X(CUDA, cuMemFree, (CUdeviceptr_v1 address))                                                                       \
    X(CUDA, cuMemFree_v2, (CUdeviceptr address))

/* hooks_context.c */
#define HOOKS_CONTEXT(X)                                                                                               \
    X(CUDA, cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                                          \
    X(CUDA, cuDevicePrimaryCtxRelease, (CUdevice device))                                                              \
    X(CUDA, cuDevicePrimaryCtxRelease_v2, (CUdevice device))                                                           \
    X(CUDA, cuDevicePrimaryCtxReset, (CUdevice device))                                                                \
    X(CUDA, cuDevicePrimaryCtxReset_v2, (CUdevice device))                                                             \
    X(CUDA, cuCtxCreate, (CUcontext * context, unsigned int flags, CUdevice device))                                   \
    X(CUDA, cuCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice device))                                \
    X(CUDA, cuCtxCreate_v3, (CUcontext * context, void *affinities, int count, unsigned int flags, CUdevice device))   \
    X(CUDA, cuCtxCreate_v4, (CUcontext * context, void *parameters, unsigned int flags, CUdevice device))              \
    X(CUDA, cuCtxDestroy, (CUcontext context))                                                                         \
    X(CUDA, cuCtxDestroy_v2, (CUcontext context))                                                                      \
    X(CUDA, cuCtxDetach, (CUcontext context))                                                                          \
    X(CUDA, cuCtxSetLimit, (int limit, size_t value))                                                                  \
    X(CUDA, cuGreenCtxCreate, (CUgreenCtx * context, void *resources, CUdevice device, unsigned int flags))            \
    X(CUDA, cuGreenCtxDestroy, (CUgreenCtx context))

/* hooks_report.c */
#define HOOKS_REPORT(X)                                                                                                \
    X(CUDA, cuMemGetInfo, (unsigned int *free, unsigned int *total))                                                   \
    X(CUDA, cuMemGetInfo_v2, (size_t *free, size_t *total))                                                            \
    X(CUDA, cuDeviceTotalMem, (unsigned int *bytes, CUdevice device))                                                  \
    X(CUDA, cuDeviceTotalMem_v2, (size_t *bytes, CUdevice device))                                                     \
    X(NVML, nvmlDeviceGetMemoryInfo, (nvmlDevice_t device, nvmlMemory_t * memory))                                     \
    X(NVML, nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t device, nvmlMemory_v2_t * memory))

/* Calls that the shim makes and does not intercept. */
#define USED(X)                                                                                                        \
    X(CUDA, cuCtxGetCurrent, (CUcontext * context))                                                                    \
    X(CUDA, cuCtxGetDevice, (CUdevice * device))                                                                       \
    X(CUDA, cuCtxGetApiVersion, (CUcontext context, unsigned int *version))                                            \
    X(CUDA, cuCtxGetLimit, (size_t *value, int limit))                                                                 \
    X(CUDA, cuDeviceGetUuid, (CUuuid * uuid, CUdevice device))                                                         \
    X(CUDA, cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice device))                                                      \
    X(CUDA, cuDevicePrimaryCtxGetState, (CUdevice device, unsigned int *flags, int *active))                           \
    X(NVML, nvmlDeviceGetUUID, (nvmlDevice_t device, char *uuid, unsigned int length))

/* ---- made from the tables ---- */

enum hook {
#define NUMBER(library, name, parameters) HOOK_##name,
    HOOKS(NUMBER)
#undef NUMBER
        HOOK_COUNT,
    LAST_HOOK = HOOK_COUNT - 1,
#define NUMBER(library, name, parameters) HOOK_##name,
    USED(NUMBER)
#undef NUMBER
        CALL_COUNT
};

#define DECLARE(library, name, parameters)                                                                             \
    typedef int name##_function parameters;                                                                            \
    __attribute__((visibility("default"))) name##_function name;
HOOKS(DECLARE)
#undef DECLARE

#define DECLARE(library, name, parameters) typedef int name##_function parameters;
USED(DECLARE)
#undef DECLARE

extern _Atomic(void *) real_address[CALL_COUNT];

/* Finds a real function; one that the driver does not have becomes one that says so. resolve.c */
void *real_find(enum hook hook);

/* True if the installed driver has the call. */
int real_exists(enum hook hook);

static inline void *real_function(enum hook hook) {
    void *address = atomic_load_explicit(&real_address[hook], memory_order_acquire);
    return address ? address : real_find(hook);
}

/* The driver's own function: REAL(cuMemFree_v2)(address) */
#define REAL(name) ((name##_function *)real_function(HOOK_##name))

/* What to hand out instead of a real function, or NULL if that one is not intercepted. */
void *wrapper_of(const void *real);

#endif
