/* Contexts for OpenGL and VDPAU. */
#include "driver.h"

/* For OpenGL, which this card does not draw: a context like any other. */
ENTRY(cuGLCtxCreate, (CUcontext *context, unsigned flags, CUdevice device), context_create(context, flags, device));

ENTRY(cuGLCtxCreate_v2, (CUcontext *context, unsigned flags, CUdevice device), context_create(context, flags, device));

/* Nor does it decode films for VDPAU. */
ENTRY(cuVDPAUCtxCreate, (CUcontext *context, unsigned flags, CUdevice device, uint32_t vdpau, void *entries),
      context_create(context, flags, device));

ENTRY(cuVDPAUCtxCreate_v2, (CUcontext *context, unsigned flags, CUdevice device, uint32_t vdpau, void *entries),
      context_create(context, flags, device));
