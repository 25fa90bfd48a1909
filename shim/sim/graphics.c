/* Contexts for OpenGL and VDPAU. */
#include "driver.h"

/* For OpenGL, which this card does not draw: a context like any other. */
EXPORT CUresult cuGLCtxCreate(CUcontext *context, unsigned flags, CUdevice device) {
    ENTERED();
    return context_create(context, flags, device);
}

EXPORT CUresult cuGLCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
    ENTERED();
    return context_create(context, flags, device);
}

/* Nor does it decode films for VDPAU. */
EXPORT CUresult cuVDPAUCtxCreate(CUcontext *context, unsigned flags, CUdevice device, uint32_t vdpau, void *entries) {
    ENTERED();
    (void)vdpau, (void)entries;
    return context_create(context, flags, device);
}

EXPORT CUresult cuVDPAUCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device, uint32_t vdpau,
                                    void *entries) {
    ENTERED();
    (void)vdpau, (void)entries;
    return context_create(context, flags, device);
}
