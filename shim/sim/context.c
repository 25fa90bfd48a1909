/* Contexts: primary ones, made ones, and each thread's stack of them. A context takes memory of its own. */
#include "driver.h"

#include <stdlib.h>

#define STACK 64

enum { LIMIT_STACK = 0, LIMIT_PRINTF = 1, LIMIT_HEAP = 2 };
#define HEAP_DEFAULT (8u << 20) /* part of what every context takes */

static struct context primary[CARD_GPUS];
static unsigned living[CARD_GPUS]; /* contexts by device */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local struct context *stack[STACK];
static _Thread_local int depth;

static CUresult start(struct context *context, CUdevice device, unsigned flags) {
    if (!card_join()) return CUDA_ERROR_OUT_OF_MEMORY;
    checkpoint_serve();
    REQUIRE(units_take(sim_gpu(device), SIM_CONTEXT_UNITS, &context->overhead));
    context->device = device;
    context->flags = flags;
    context->broken = CUDA_SUCCESS;
    context->limit[LIMIT_STACK] = 1024;
    context->limit[LIMIT_PRINTF] = 1 << 20;
    context->limit[LIMIT_HEAP] = HEAP_DEFAULT;
    context->alive = true;
    living[device]++;
    return CUDA_SUCCESS;
}

static void stop(struct context *context) {
    unsigned gpu = sim_gpu(context->device);
    card_settle(gpu);
    context->alive = false;
    heap_drop(gpu, context);
    units_give(gpu, &context->overhead);
    if (context->limits.taken != NULL) units_give(gpu, &context->limits);
    /* Pools are the device's, not a context's; they end with the last one. */
    if (--living[context->device] > 0) return;
    pool_forget(context->device);
    graph_memory_forget(context->device);
}

static CUresult begin(CUdevice device) {
    REQUIRE(sim_ready());
    return sim_valid(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult context_current(struct context **context) {
    REQUIRE(sim_ready());
    *context = depth > 0 ? stack[depth - 1] : NULL;
    if (*context == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    if (!(*context)->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return (*context)->broken;
}

/* ---- primary contexts ---- */

CUresult context_retain(CUdevice device, struct context **context) {
    REQUIRE(begin(device));
    HOLD(&lock);
    struct context *mine = &primary[device];
    if (!mine->alive) REQUIRE(start(mine, device, mine->flags));
    mine->users++;
    *context = mine;
    return CUDA_SUCCESS;
}

ENTRY(cuDevicePrimaryCtxRetain, (CUcontext *context, CUdevice device),
      context == NULL ? CUDA_ERROR_INVALID_VALUE : context_retain(device, context));

CUresult context_release(CUdevice device) {
    REQUIRE(begin(device));
    HOLD(&lock);
    struct context *mine = &primary[device];
    if (mine->users == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--mine->users == 0 && mine->alive) stop(mine);
    return CUDA_SUCCESS;
}

ENTRY(cuDevicePrimaryCtxRelease_v2, (CUdevice device), context_release(device));

ENTRY(cuDevicePrimaryCtxRelease, (CUdevice device), context_release(device));

static CUresult reset(CUdevice device) {
    REQUIRE(begin(device));
    HOLD(&lock);
    if (primary[device].alive) stop(&primary[device]);
    primary[device].users = 0;
    return CUDA_SUCCESS;
}

ENTRY(cuDevicePrimaryCtxReset_v2, (CUdevice device), reset(device));

ENTRY(cuDevicePrimaryCtxReset, (CUdevice device), reset(device));

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    ENTERED();
    REQUIRE(begin(device));
    if (flags != NULL) *flags = primary[device].flags;
    if (active != NULL) *active = primary[device].alive;
    return CUDA_SUCCESS;
}

/* ---- made contexts ---- */

static CUresult push(CUcontext context) {
    REQUIRE(sim_ready());
    if (context == NULL || depth == STACK) return CUDA_ERROR_INVALID_VALUE;
    if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

ENTRY(cuCtxPushCurrent_v2, (CUcontext context), push(context));
ALSO(cuCtxPushCurrent, cuCtxPushCurrent_v2);

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    ENTERED_READY();
    if (depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context != NULL) *context = stack[depth];
    return CUDA_SUCCESS;
}

static _Atomic bool reuse;
static struct context *_Atomic destroyed; /* the last one, if `reuse` */

/* For tests: from now on a context has the address of the one that was destroyed last. */
EXPORT void sim_reuse_contexts(void) { atomic_store(&reuse, true); }

CUresult context_create(CUcontext *context, unsigned flags, CUdevice device) {
    REQUIRE(begin(device));
    if (context == NULL) return CUDA_ERROR_INVALID_VALUE;
    /* Never freed: a program may go on using the handle of a destroyed context, and gets an error. */
    struct context *made = atomic_exchange(&destroyed, NULL);
    if (made == NULL)
        made = calloc(1, sizeof *made);
    else
        memset(made, 0, sizeof *made);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = start(made, device, flags);
    if (result == CUDA_SUCCESS) result = push(made);
    if (result == CUDA_SUCCESS)
        *context = made;
    else
        free(made);
    return result;
}

ENTRY(cuCtxCreate, (CUcontext *context, unsigned flags, CUdevice device), context_create(context, flags, device));

ENTRY(cuCtxCreate_v2, (CUcontext *context, unsigned flags, CUdevice device), context_create(context, flags, device));

EXPORT CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device) {
    ENTERED();
    if (affinity != NULL || count != 0) return CUDA_ERROR_NOT_SUPPORTED;
    return context_create(context, flags, device);
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *context, void *params, unsigned flags, CUdevice device) {
    ENTERED();
    if (params != NULL) return CUDA_ERROR_NOT_SUPPORTED;
    return context_create(context, flags, device);
}

static CUresult destroy(CUcontext context) {
    REQUIRE(sim_ready());
    if (context == NULL || (context >= primary && context < primary + CARD_GPUS)) return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    bool was_alive = context->alive;
    if (was_alive) stop(context);
    pthread_mutex_unlock(&lock);
    if (!was_alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (depth > 0 && stack[depth - 1] == context) depth--;
    if (atomic_load(&reuse)) atomic_store(&destroyed, context);
    return CUDA_SUCCESS;
}

ENTRY(cuCtxDestroy_v2, (CUcontext context), destroy(context));

ENTRY(cuCtxDestroy, (CUcontext context), destroy(context));

ENTRY(cuCtxDetach, (CUcontext context), destroy(context));

/* ---- the current context ---- */

EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
    ENTERED_READY();
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
    ENTERED_READY();
    if (context == NULL) return CUDA_ERROR_INVALID_VALUE;
    *context = depth > 0 ? stack[depth - 1] : NULL;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
    ENTERED_IN(context);
    if (device == NULL) return CUDA_ERROR_INVALID_VALUE;
    *device = context->device;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetFlags(unsigned *flags) {
    ENTERED_IN(context);
    if (flags == NULL) return CUDA_ERROR_INVALID_VALUE;
    *flags = context->flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void) {
    LOOKS();
    struct context *context;
    REQUIRE(context_current(&context));
    card_settle(sim_gpu(context->device));
    pool_settle();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize_v2(CUcontext context) {
    LOOKS();
    REQUIRE(sim_ready());
    if (context == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    card_settle(sim_gpu(context->device));
    pool_settle();
    return context->broken;
}

EXPORT CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context) {
    ENTERED_READY();
    if (device == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (context == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *device = context->device;
    return CUDA_SUCCESS;
}

/* A bigger device heap takes memory at once; the other limits cost nothing here. */
static CUresult grow_heap(struct context *context, size_t bytes) {
    uint64_t beyond = bytes > HEAP_DEFAULT ? (bytes - HEAP_DEFAULT + CARD_UNIT - 1) / CARD_UNIT : 0;
    unsigned gpu = sim_gpu(context->device);
    struct units more = {0};
    if (beyond > card_open()->gpu[gpu].units) return CUDA_ERROR_OUT_OF_MEMORY;
    REQUIRE(beyond > 0 ? units_take(gpu, beyond, &more) : CUDA_SUCCESS);
    if (context->limits.taken != NULL) units_give(gpu, &context->limits);
    context->limits = more;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetLimit(int limit, size_t value) {
    ENTERED_IN(context);
    if (limit < 0 || limit >= CONTEXT_LIMITS) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    HOLD(&lock);
    if (limit == LIMIT_HEAP) REQUIRE(grow_heap(context, value));
    context->limit[limit] = value;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetLimit(size_t *value, int limit) {
    ENTERED_IN(context);
    if (value == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (limit < 0 || limit >= CONTEXT_LIMITS) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *value = context->limit[limit];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version) {
    ENTERED_READY();
    if (version == NULL || (context != NULL && !context->alive)) return CUDA_ERROR_INVALID_VALUE;
    *version = SIM_CUDA_VERSION;
    return CUDA_SUCCESS;
}
