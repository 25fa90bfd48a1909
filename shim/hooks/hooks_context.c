/* Contexts: each is charged what the scheduler measured for this GPU, before it is made. What it really takes, now and
 * later (limits, loaded modules), the scheduler finds in NVML's figure for the process. */
#include "charging/charge.h"
#include "client.h"
#include "charging/devices.h"
#include "charging/held.h"
#include "charging/pools.h"
#include "resolve.h"

/* ---- the primary context: one for each device, counted by the driver ---- */

/* The primary context is locked while the driver ends it and what it held is given back: a thread that makes it anew
 * meanwhile would find its own memory given back with that of the old one. */

/* After a release or reset: if the primary context has ended, what it held is free. */
static void look_at_primary(CUdevice device) {
    unsigned int flags;
    int active = 1;
    if (!client_page() || REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) != CUDA_SUCCESS || active) return;
    devices_changed();
    CUresult unused;
    int slot = devices_slot(device, &unused);
    if (slot == NO_SLOT) return;
    held_context_gone(0, slot);
    pools_slot_gone(slot);
    devices_give_primary(device);
}

#define KEEP_PRIMARY(call)                                                                                             \
    CUresult result = devices_keep_primary(device);                                                                    \
    if (result != CUDA_SUCCESS) return result;                                                                         \
    result = call;                                                                                                     \
    if (result != CUDA_SUCCESS) look_at_primary(device);                                                               \
    devices_unlock_primary(device);                                                                                    \
    return result

int cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    KEEP_PRIMARY(REAL(cuDevicePrimaryCtxRetain)(context, device));
}

#define END_PRIMARY(name)                                                                                              \
    int name(CUdevice device) {                                                                                        \
        if (device < 0 || device >= DEVICES) return REAL(name)(device);                                                \
        devices_lock_primary(device);                                                                                  \
        CUresult result = REAL(name)(device);                                                                          \
        if (result == CUDA_SUCCESS) look_at_primary(device);                                                           \
        devices_unlock_primary(device);                                                                                \
        return result;                                                                                                 \
    }
END_PRIMARY(cuDevicePrimaryCtxRelease)
END_PRIMARY(cuDevicePrimaryCtxRelease_v2)
END_PRIMARY(cuDevicePrimaryCtxReset)
END_PRIMARY(cuDevicePrimaryCtxReset_v2)

/* A green context is a part of the primary one, which it keeps alive. Its streams are its own. */
int cuGreenCtxCreate(CUgreenCtx *context, void *resources, CUdevice device, unsigned int flags) {
    atomic_store(&devices_now.several_contexts, true);
    KEEP_PRIMARY(REAL(cuGreenCtxCreate)(context, resources, device, flags));
}

/* Which device it is on, only the driver knows. */
int cuGreenCtxDestroy(CUgreenCtx context) {
    bool locked[DEVICES];
    for (CUdevice device = 0; device < DEVICES; device++)
        if ((locked[device] = devices_primary_charged(device))) devices_lock_primary(device);
    CUresult result = REAL(cuGreenCtxDestroy)(context);
    for (CUdevice device = DEVICES - 1; device >= 0; device--) {
        if (!locked[device]) continue;
        if (result == CUDA_SUCCESS) look_at_primary(device);
        devices_unlock_primary(device);
    }
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

static _Atomic uint64_t contexts; /* made so far; the number of the last one */

/* All that was in a context is free. It is known by its number: its address may be another one's by now. */
static void gone(const struct ledger_entry *entry) {
    devices_changed();
    held_context_gone(entry->owner, entry->slot);
    atomic_fetch_sub(&client_page()->slot[entry->slot].overhead, entry->bytes);
    charge_give(entry->slot, entry->bytes);
}

static CUresult end(const struct making *making, CUresult result, CUcontext *context) {
    struct ledger_entry replaced,
        entry = {.kind = LEDGER_CONTEXT, .bytes = making->bytes, .slot = (uint8_t)making->slot};
    if (result == CUDA_SUCCESS) {
        devices_own_context();
        entry.key = (uint64_t)(uintptr_t)*context;
        entry.owner = atomic_fetch_add(&contexts, 1) + 1;
        atomic_fetch_add(&client_page()->slot[making->slot].overhead, making->bytes);
        if (ledger_put(&entry, &replaced)) {
            if (replaced.kind) gone(&replaced);
            return CUDA_SUCCESS;
        }
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

#define DESTROY(name)                                                                                                  \
    int name(CUcontext context) {                                                                                      \
        struct ledger_entry entry, replaced;                                                                           \
        bool known = ledger_take(LEDGER_CONTEXT, (uint64_t)(uintptr_t)context, &entry);                                \
        devices_changed(); /* before another context can have its address */                                           \
        CUresult result = REAL(name)(context);                                                                         \
        if (known && result == CUDA_SUCCESS) gone(&entry);                                                             \
        if (known && result != CUDA_SUCCESS) ledger_put(&entry, &replaced);                                            \
        return result;                                                                                                 \
    }
DESTROY(cuCtxDestroy)
DESTROY(cuCtxDestroy_v2)

/* Ends the context only when it was attached no more often than detached. */
int cuCtxDetach(CUcontext context) {
    struct ledger_entry entry;
    unsigned int version;
    bool known = ledger_get(LEDGER_CONTEXT, (uint64_t)(uintptr_t)context, &entry);
    devices_changed();
    CUresult result = REAL(cuCtxDetach)(context);
    if (result != CUDA_SUCCESS || !known || REAL(cuCtxGetApiVersion)(context, &version) == CUDA_SUCCESS) return result;
    /* Another context that was made at its address meanwhile has done this already. */
    if (ledger_take_owned(LEDGER_CONTEXT, entry.key, entry.owner, &entry)) gone(&entry);
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
