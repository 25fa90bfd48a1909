/* Contexts: each is charged what the scheduler measured for this GPU, before it is made. What it really takes, now and
 * later (limits, loaded modules), the scheduler finds in NVML's figure for the process. */
#include "charging/charge.h"
#include "client.h"
#include "charging/devices.h"
#include "charging/held.h"
#include "charging/pools.h"
#include "resolve.h"

/* ---- the primary context: one for each device, counted by the driver ---- */

/* After a release or reset: if the primary context has ended, what it held is free. */
static void look_at_primary(CUdevice device) {
    unsigned int flags;
    int active = 1;
    if (REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) != CUDA_SUCCESS || active) return;
    devices_changed();
    CUresult unused;
    int slot = devices_slot(device, &unused);
    if (slot == NO_SLOT) return;
    held_context_gone(NULL, slot);
    pools_slot_gone(slot);
    devices_give_primary(device);
}

int cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    bool charged;
    CUresult result = devices_take_primary(device, &charged);
    if (result != CUDA_SUCCESS) return result;
    result = REAL(cuDevicePrimaryCtxRetain)(context, device);
    if (result != CUDA_SUCCESS && charged) devices_give_primary(device);
    return result;
}

#define END_PRIMARY(name)                                                                                              \
    int name(CUdevice device) {                                                                                        \
        CUresult result = REAL(name)(device);                                                                          \
        if (result == CUDA_SUCCESS) look_at_primary(device);                                                           \
        return result;                                                                                                 \
    }
END_PRIMARY(cuDevicePrimaryCtxRelease)
END_PRIMARY(cuDevicePrimaryCtxRelease_v2)
END_PRIMARY(cuDevicePrimaryCtxReset)
END_PRIMARY(cuDevicePrimaryCtxReset_v2)

/* A green context is a part of the primary one, which it keeps alive. */
int cuGreenCtxCreate(CUgreenCtx *context, void *resources, CUdevice device, unsigned int flags) {
    bool charged;
    CUresult result = devices_take_primary(device, &charged);
    if (result != CUDA_SUCCESS) return result;
    result = REAL(cuGreenCtxCreate)(context, resources, device, flags);
    if (result != CUDA_SUCCESS && charged) devices_give_primary(device);
    return result;
}

int cuGreenCtxDestroy(CUgreenCtx context) {
    CUresult result = REAL(cuGreenCtxDestroy)(context);
    for (CUdevice device = 0; result == CUDA_SUCCESS && device < DEVICES; device++)
        if (devices_primary_charged(device)) look_at_primary(device);
    return result;
}

/* ---- contexts of the program's own ---- */

struct making {
    int slot;
    uint64_t bytes;
};

static CUresult begin(struct making *making, CUdevice device) {
    CUresult result;
    making->slot = devices_slot(device, &result);
    if (making->slot == NO_SLOT) return result;
    making->bytes = atomic_load(&client_page()->slot[making->slot].context);
    return charge_take(making->slot, making->bytes, WIRE_FOR_CONTEXT);
}

static CUresult end(const struct making *making, CUresult result, CUcontext *context) {
    struct ledger_entry entry = {.kind = LEDGER_CONTEXT, .bytes = making->bytes, .slot = (uint8_t)making->slot};
    if (result == CUDA_SUCCESS) {
        devices_own_context();
        entry.key = (uint64_t)(uintptr_t)*context;
        atomic_fetch_add(&client_page()->slot[making->slot].overhead, making->bytes);
        if (held_note(&entry)) return CUDA_SUCCESS;
        atomic_fetch_sub(&client_page()->slot[making->slot].overhead, making->bytes);
        REAL(cuCtxDestroy_v2)(*context);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    charge_give(making->slot, making->bytes);
    return result;
}

#define CREATE(name, device, ...)                                                                                      \
    struct making making;                                                                                              \
    CUresult result = begin(&making, device);                                                                          \
    if (result != CUDA_SUCCESS) return result;                                                                         \
    return end(&making, REAL(name)(context, __VA_ARGS__), context)

int cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device) { CREATE(cuCtxCreate, device, flags, device); }

int cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) {
    CREATE(cuCtxCreate_v2, device, flags, device);
}

int cuCtxCreate_v3(CUcontext *context, void *affinities, int count, unsigned int flags, CUdevice device) {
    CREATE(cuCtxCreate_v3, device, affinities, count, flags, device);
}

int cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned int flags, CUdevice device) {
    CREATE(cuCtxCreate_v4, device, parameters, flags, device);
}

/* A context that shares with OpenGL: cudaGL.h has it, cuda.h does not. */
int cuGLCtxCreate(CUcontext *context, unsigned int flags, CUdevice device) {
    CREATE(cuGLCtxCreate, device, flags, device);
}

int cuGLCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) {
    CREATE(cuGLCtxCreate_v2, device, flags, device);
}

/* One that shares with VDPAU (cudaVDPAU.h): a device of that, and the function that finds its others. */
int cuVDPAUCtxCreate(CUcontext *context, unsigned int flags, CUdevice device, uint32_t vdpau, void *entries) {
    CREATE(cuVDPAUCtxCreate, device, flags, device, vdpau, entries);
}

int cuVDPAUCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device, uint32_t vdpau, void *entries) {
    CREATE(cuVDPAUCtxCreate_v2, device, flags, device, vdpau, entries);
}

static void gone(CUcontext context, const struct ledger_entry *entry) {
    devices_changed();
    held_context_gone(context, entry->slot);
    atomic_fetch_sub(&client_page()->slot[entry->slot].overhead, entry->bytes);
    charge_give(entry->slot, entry->bytes);
}

#define DESTROY(name)                                                                                                  \
    int name(CUcontext context) {                                                                                      \
        struct ledger_entry entry;                                                                                     \
        bool known = ledger_take(LEDGER_CONTEXT, (uint64_t)(uintptr_t)context, &entry);                                \
        CUresult result = REAL(name)(context);                                                                         \
        if (known && result == CUDA_SUCCESS) gone(context, &entry);                                                    \
        if (known && result != CUDA_SUCCESS) held_note(&entry);                                                        \
        return result;                                                                                                 \
    }
DESTROY(cuCtxDestroy)
DESTROY(cuCtxDestroy_v2)

/* Ends the context only when it was attached no more often than detached. */
int cuCtxDetach(CUcontext context) {
    struct ledger_entry entry;
    unsigned int version;
    CUresult result = REAL(cuCtxDetach)(context);
    if (result != CUDA_SUCCESS || REAL(cuCtxGetApiVersion)(context, &version) == CUDA_SUCCESS) return result;
    if (ledger_take(LEDGER_CONTEXT, (uint64_t)(uintptr_t)context, &entry)) gone(context, &entry);
    return result;
}

/* The heap of the GPU's own malloc is taken when a module is first loaded, and shows in NVML's figure then. Here it is
 * only kept from being made larger than what the container may still use. */
int cuCtxSetLimit(int limit, size_t value) {
    struct place place;
    size_t before = 0;
    if (limit == CU_LIMIT_MALLOC_HEAP_SIZE && devices_here(&place) == CUDA_SUCCESS &&
        REAL(cuCtxGetLimit)(&before, limit) == CUDA_SUCCESS && value > before &&
        value - before > lease_claim(&client_page()->slot[place.slot]))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return REAL(cuCtxSetLimit)(limit, value);
}
