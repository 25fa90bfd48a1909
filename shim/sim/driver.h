/* The simulated libcuda.so.1: what its parts share. Types and numbers are those of CUDA 13.0's driver API. */
#ifndef SIM_DRIVER_H
#define SIM_DRIVER_H

#include "card.h"

#include <pthread.h>
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct context *CUcontext;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef struct module *CUmodule;
typedef struct function *CUfunction;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE = 708,
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801,
};

#define SIM_CUDA_VERSION 13000
#define SIM_CONTEXT_UNITS 33 /* 66 MiB, as in the paper that this product stands on */

/* ---- device.c: the GPUs this process sees, in its order ---- */

/* CUDA_SUCCESS once cuInit has succeeded here; a forked child of such a process never gets there, as on a real card. */
CUresult sim_ready(void);
int sim_devices(void);
/* The card's number of a visible device. Check sim_valid first. */
unsigned sim_gpu(CUdevice device);
bool sim_valid(CUdevice device);

/* ---- heap.c: this process's memory on each GPU ---- */

enum block_kind { BLOCK_DEVICE, BLOCK_MANAGED };

/* Where an address belongs. */
struct place {
    unsigned gpu;
    CUdeviceptr base;
    uint64_t bytes;
    enum block_kind kind;
};

/* `owner` is the context that the memory goes away with. */
CUresult heap_take(unsigned gpu, const void *owner, uint64_t bytes, enum block_kind kind, CUdeviceptr *address);
CUresult heap_give(CUdeviceptr address);
void heap_drop(unsigned gpu, const void *owner);
bool heap_find(CUdeviceptr address, struct place *place);
/* Is the address in the simulated memory's address space at all? */
bool heap_is_ours(CUdeviceptr address);

/* Units that have no address: what a context takes. */
struct units {
    uint64_t count;
    uint32_t *taken;
};
CUresult units_take(unsigned gpu, uint64_t count, struct units *units);
void units_give(unsigned gpu, struct units *units);

/* ---- context.c ---- */

struct context {
    CUdevice device;
    bool alive;
    unsigned flags;
    unsigned users;  /* primary contexts: how often retained */
    CUresult broken; /* an error of the device that stays until the context is destroyed */
    struct units overhead;
};

/* The calling thread's context, or why it has none that works. */
CUresult context_current(struct context **context);

/* ---- memory.c ---- */

/* True if a program may touch these bytes as device memory. */
bool memory_covers(CUdeviceptr address, uint64_t bytes);

#endif
