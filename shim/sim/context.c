/* Contexts: primary ones, made ones, and each thread's stack of them. A context takes memory of its own. */
#include "driver.h"

#include <stdlib.h>

#define STACK 64

static struct context primary[CARD_GPUS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local struct context *stack[STACK];
static _Thread_local int depth;

static CUresult start(struct context *context, CUdevice device, unsigned flags) {
    if (!card_join()) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = units_take(sim_gpu(device), SIM_CONTEXT_UNITS, &context->overhead);
    if (result != CUDA_SUCCESS) return result;
    context->device = device;
    context->flags = flags;
    context->broken = CUDA_SUCCESS;
    context->alive = true;
    return CUDA_SUCCESS;
}

static void stop(struct context *context) {
    unsigned gpu = sim_gpu(context->device);
    context->alive = false;
    heap_drop(gpu, context);
    units_give(gpu, &context->overhead);
}

static CUresult begin(CUdevice device) {
    CUresult ready = sim_ready();
    if (ready != CUDA_SUCCESS) return ready;
    return sim_valid(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult context_current(struct context **context) {
    CUresult ready = sim_ready();
    if (ready != CUDA_SUCCESS) return ready;
    *context = depth > 0 ? stack[depth - 1] : NULL;
    if (*context == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    if (!(*context)->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return (*context)->broken;
}

/* ---- primary contexts ---- */

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    CUresult result = begin(device);
    if (result != CUDA_SUCCESS) return result;
    if (context == NULL) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct context *mine = &primary[device];
    if (!mine->alive) result = start(mine, device, mine->flags);
    if (result == CUDA_SUCCESS) {
        mine->users++;
        *context = mine;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    CUresult result = begin(device);
    if (result != CUDA_SUCCESS) return result;
    pthread_mutex_lock(&lock);
    struct context *mine = &primary[device];
    if (mine->users == 0) result = CUDA_ERROR_INVALID_CONTEXT;
    else if (--mine->users == 0 && mine->alive) stop(mine);
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return cuDevicePrimaryCtxRelease_v2(device); }

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    CUresult result = begin(device);
    if (result != CUDA_SUCCESS) return result;
    pthread_mutex_lock(&lock);
    if (primary[device].alive) stop(&primary[device]);
    primary[device].users = 0;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device) { return cuDevicePrimaryCtxReset_v2(device); }

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
    CUresult result = begin(device);
    if (result == CUDA_SUCCESS) primary[device].flags = flags;
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
    return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    CUresult result = begin(device);
    if (result != CUDA_SUCCESS) return result;
    if (flags != NULL) *flags = primary[device].flags;
    if (active != NULL) *active = primary[device].alive;
    return CUDA_SUCCESS;
}

/* ---- made contexts ---- */

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
    CUresult ready = sim_ready();
    if (ready != CUDA_SUCCESS) return ready;
    if (context == NULL || depth == STACK) return CUDA_ERROR_INVALID_VALUE;
    if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    CUresult ready = sim_ready();
    if (ready != CUDA_SUCCESS) return ready;
    if (depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context != NULL) *context = stack[depth];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
    CUresult result = begin(device);
    if (result != CUDA_SUCCESS) return result;
    if (context == NULL) return CUDA_ERROR_INVALID_VALUE;
    /* Never freed: a program may go on using the handle of a destroyed context, and is told so. */
    struct context *made = calloc(1, sizeof *made);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    result = start(made, device, flags);
    if (result == CUDA_SUCCESS) result = cuCtxPushCurrent_v2(made);
    if (result == CUDA_SUCCESS) *context = made;
    else free(made);
    return result;
}

EXPORT CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device) {
    return cuCtxCreate_v2(context, flags, device);
}

EXPORT CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device) {
    if (affinity != NULL || count != 0) return CUDA_ERROR_NOT_SUPPORTED;
    return cuCtxCreate_v2(context, flags, device);
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *context, void *params, unsigned flags, CUdevice device) {
    if (params != NULL) return CUDA_ERROR_NOT_SUPPORTED;
    return cuCtxCreate_v2(context, flags, device);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context) {
    CUresult ready = sim_ready();
    if (ready != CUDA_SUCCESS) return ready;
    if (context == NULL || (context >= primary && context < primary + CARD_GPUS)) return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    bool was_alive = context->alive;
    if (was_alive) stop(context);
    pthread_mutex_unlock(&lock);
    if (!was_alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (depth > 0 && stack[depth - 1] == context) depth--;
    return CUDA_SUCCESS;
}

/* ---- the current context ---- */

EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
    CUresult ready = sim_ready();
    if (ready != CUDA_SUCCESS) return ready;
    if (context == NULL) {
        if (depth > 0) depth--;
        return CUDA_SUCCESS;
    }
    if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (depth == 0) depth = 1;
    stack[depth - 1] = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context) {
    CUresult ready = sim_ready();
    if (ready != CUDA_SUCCESS) return ready;
    if (context == NULL) return CUDA_ERROR_INVALID_VALUE;
    *context = depth > 0 ? stack[depth - 1] : NULL;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (device == NULL) return CUDA_ERROR_INVALID_VALUE;
    *device = context->device;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetFlags(unsigned *flags) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (flags == NULL) return CUDA_ERROR_INVALID_VALUE;
    *flags = context->flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void) {
    struct context *context;
    return context_current(&context);
}

EXPORT CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version) {
    CUresult ready = sim_ready();
    if (ready != CUDA_SUCCESS) return ready;
    if (version == NULL || (context != NULL && !context->alive)) return CUDA_ERROR_INVALID_VALUE;
    *version = SIM_CUDA_VERSION;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    if (least != NULL) *least = 0;
    if (greatest != NULL) *greatest = 0;
    return sim_ready();
}
