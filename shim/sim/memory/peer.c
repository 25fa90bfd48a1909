/* Memory that several cards use: peer access, multicast objects, and the descriptor of an address range. */
#include "physical.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED 704

static _Atomic uint64_t reaches[CARD_GPUS]; /* by device: whose memory its context may use */

static CUresult peers(struct context *peer, struct context **here) {
    REQUIRE(context_current(here));
    if (peer == NULL || !peer->alive) return CUDA_ERROR_INVALID_CONTEXT;
    return peer->device != (*here)->device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuCtxEnablePeerAccess(struct context *peer, unsigned flags) {
    ENTERED();
    struct context *here;
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    REQUIRE(peers(peer, &here));
    uint64_t bit = (uint64_t)1 << peer->device;
    if (atomic_fetch_or(&reaches[here->device], bit) & bit) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    gate_tie();
    return CUDA_SUCCESS;
}

struct multicast { /* CUmulticastObjectProp */
    unsigned devices;
    size_t bytes;
    unsigned long long handle_types, flags;
};

/* An object that memory of several cards can be bound to; it holds none of its own, and binding is not simulated. */
EXPORT CUresult cuMulticastCreate(CUmemHandle *handle, const struct multicast *is) {
    ENTERED_READY();
    if (handle == NULL || is == NULL || is->devices == 0 || is->bytes == 0 || is->bytes % CARD_UNIT != 0 || is->flags)
        return CUDA_ERROR_INVALID_VALUE;
    struct physical *physical = calloc(1, sizeof *physical);
    if (physical == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *physical = (struct physical){.bytes = is->bytes, .properties = {.handle_types = (int)is->handle_types}};
    physical->file = (int)syscall(SYS_memfd_create, "simulated multicast object", 1u /* MFD_CLOEXEC */);
    HOLD(&physical_lock);
    *handle = physical->file >= 0 ? handle_new(physical) : 0;
    if (*handle == 0) {
        physical_end(physical);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    gate_tie();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t bytes, int type,
                                              unsigned long long flags) {
    ENTERED_READY();
    off_t offset;
    if (handle == NULL || type != 1 /* dma-buf */ || flags != 0 || !address_covers(address, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    int file = heap_file(address, &offset), given = file >= 0 ? dup(file) : -1;
    if (given < 0) return CUDA_ERROR_NOT_SUPPORTED;
    *(int *)handle = given;
    gate_tie();
    return CUDA_SUCCESS;
}
