/* The CUDA driver, found at run time, and how the workload tells what becomes of it. */
#ifndef WORKLOAD_DRIVER_H
#define WORKLOAD_DRIVER_H

#include <stddef.h>

enum { EXIT_WRONG = 1, EXIT_MEMORY = 2 };
enum { CUDA_SUCCESS = 0, CUDA_ERROR_OUT_OF_MEMORY = 2 };

typedef int CUresult;
typedef unsigned long long CUdeviceptr;

/* The calls of the driver that this program makes; each becomes a pointer of the same name. */
/* clang-format off */
#define DRIVER(call) \
    call(cuInit, (unsigned flags)) \
    call(cuDeviceGet, (int *device, int ordinal)) \
    call(cuDeviceGetName, (char *name, int length, int device)) \
    call(cuDevicePrimaryCtxRetain, (void **context, int device)) \
    call(cuDevicePrimaryCtxRelease_v2, (int device)) \
    call(cuCtxSetCurrent, (void *context)) \
    call(cuCtxSynchronize, (void)) \
    call(cuMemGetInfo_v2, (size_t *free_bytes, size_t *total)) \
    call(cuMemAlloc_v2, (CUdeviceptr *address, size_t bytes)) \
    call(cuMemFree_v2, (CUdeviceptr address)) \
    call(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes)) \
    call(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes)) \
    call(cuModuleLoadData, (void **module, const void *image)) \
    call(cuModuleGetFunction, (void **function, void *module, const char *name)) \
    call(cuLaunchKernel, (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, \
         unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **params, void **extra)) \
    call(cuEventCreate, (void **event, unsigned flags)) \
    call(cuEventRecord, (void *event, void *stream)) \
    call(cuEventSynchronize, (void *event)) \
    call(cuDeviceGetAttribute, (int *value, int attribute, int device)) \
    call(cuGetErrorName, (CUresult error, const char **name))
/* clang-format on */

#define DECLARE(name, arguments) extern CUresult(*name) arguments;
DRIVER(DECLARE)
#undef DECLARE

/* Ends the program if there is none, or an old one. */
void load_driver(void);

/* Two kernels, as PTX text. */
extern const char KERNELS[];

/* Seconds, CLOCK_MONOTONIC. */
double now(void);

/* A line with the seconds since `say_from_here`. */
void say_from_here(void);
__attribute__((format(printf, 1, 2))) void say(const char *format, ...);

/* Ends the program unless the call succeeded. */
void must(CUresult result, const char *what);

#endif
