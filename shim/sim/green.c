/* Green contexts: a share of a GPU's processors. They live in the device's primary context and take no memory beside
 * it. The simulated GPU has 16 processors, which come in pairs. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

#define PROCESSORS 16u
#define PAIR 2u
enum { RESOURCE_SM = 1 };

struct resource { /* CUdevResource */
    int type;
    unsigned char padding[92];
    union {
        struct {
            unsigned count, least, alignment;
        } sm;
        unsigned char room[48];
    };
};
_Static_assert(sizeof(struct resource) == 144, "CUDA's layout");

struct green {
    CUdevice device;
    struct context *context;
};

static struct resource processors(unsigned count) {
    struct resource resource = {.type = RESOURCE_SM};
    resource.sm.count = count;
    resource.sm.least = PAIR;
    resource.sm.alignment = PAIR;
    return resource;
}

EXPORT CUresult cuDeviceGetDevResource(CUdevice device, struct resource *resource, int type) {
    ENTERED_READY();
    if (!sim_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (resource == NULL || type != RESOURCE_SM) return CUDA_ERROR_INVALID_VALUE;
    *resource = processors(PROCESSORS);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevResourceGenerateDesc(struct resource **descriptor, const struct resource *resources,
                                          unsigned count) {
    ENTERED();
    if (descriptor == NULL || resources == NULL || count == 0) return CUDA_ERROR_INVALID_VALUE;
    struct resource *made = malloc(sizeof *made); /* lives as long as the process: CUDA has no call to end one */
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *made = processors(0);
    for (unsigned i = 0; i < count; i++) made->sm.count += resources[i].sm.count;
    *descriptor = made;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGreenCtxCreate(struct green **green, const struct resource *descriptor, CUdevice device,
                                 unsigned flags) {
    ENTERED();
    if (green == NULL || descriptor == NULL || flags != 1 /* default stream */) return CUDA_ERROR_INVALID_VALUE;
    struct green *made = calloc(1, sizeof *made);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = context_retain(device, &made->context);
    if (result != CUDA_SUCCESS) {
        free(made);
        return result;
    }
    made->device = device;
    *green = made;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGreenCtxDestroy(struct green *green) {
    ENTERED();
    if (green == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    CUresult result = context_release(green->device);
    free(green);
    return result;
}

EXPORT CUresult cuCtxFromGreenCtx(CUcontext *context, struct green *green) {
    ENTERED();
    if (context == NULL || green == NULL) return CUDA_ERROR_INVALID_VALUE;
    *context = green->context;
    return CUDA_SUCCESS;
}
