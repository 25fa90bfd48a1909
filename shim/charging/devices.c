#include "devices.h"

#include "charge.h"
#include "client.h"
#include "fork.h"
#include "ledger.h"
#include "lock.h"
#include "options.h"
#include "resolve.h"

#include <pthread.h>
#include <string.h>

#define UNKNOWN 0
#define FOREIGN 1
#define FOUND 2 /* plus the slot */

/* By device number, as this process numbers them. */
static struct {
    _Atomic int slot;         /* UNKNOWN, FOREIGN or FOUND + slot */
    _Atomic uint64_t charged; /* what its primary context was charged; 0: it was not */
    struct lock primary;      /* whether its primary context is there, while the driver is asked for it */
    int cancel_before;        /* of the thread that holds it */
} devices[DEVICES];

struct devices_now devices_now = {.generation = 1};

static _Thread_local struct {
    uint64_t generation;
    CUcontext current;
    struct place place;
} last;

static _Atomic bool own_contexts;
static _Atomic int device_count;

void devices_changed(void) { atomic_fetch_add(&devices_now.generation, 1); }

void devices_own_context(void) {
    atomic_store(&devices_now.several_contexts, true);
    atomic_store(&own_contexts, true);
    devices_changed();
}

int devices_visible(void) {
    int count = atomic_load_explicit(&device_count, memory_order_relaxed);
    if (count || REAL(cuDeviceGetCount)(&count) != CUDA_SUCCESS) return count;
    atomic_store_explicit(&device_count, count, memory_order_relaxed);
    return count;
}

static int find_slot(CUdevice device) {
    static atomic_flag said = ATOMIC_FLAG_INIT;
    struct lease_page *page = client_page();
    CUuuid uuid;
    CUresult result = real_exists(HOOK_cuDeviceGetUuid_v2) ? REAL(cuDeviceGetUuid_v2)(&uuid, device)
                                                           : REAL(cuDeviceGetUuid)(&uuid, device);
    if (result != CUDA_SUCCESS) return UNKNOWN;
    for (int slot = 0; slot < page->slots && slot < LEASE_SLOTS; slot++)
        if (memcmp(page->slot[slot].uuid, uuid.bytes, sizeof uuid.bytes) == 0) return FOUND + slot;
    say_once(&said, "no memory of GPU %d for this process: that GPU is not its container's", device);
    return FOREIGN;
}

int devices_slot(CUdevice device, CUresult *error) {
    *error = CUDA_ERROR_NOT_PERMITTED;
    if (device < 0 || device >= DEVICES) return NO_SLOT;
    CUresult opened = charge_open();
    if (opened != CUDA_SUCCESS) {
        *error = opened;
        return NO_SLOT;
    }
    int found = atomic_load_explicit(&devices[device].slot, memory_order_relaxed);
    if (found == UNKNOWN) {
        found = find_slot(device);
        atomic_store_explicit(&devices[device].slot, found, memory_order_relaxed);
    }
    return found >= FOUND ? found - FOUND : NO_SLOT;
}

/* Where a context is. A primary one that we did not see being made is charged now. */
static CUresult locate(CUcontext context, struct place *place) {
    struct ledger_entry entry;
    CUresult result = REAL(cuCtxGetDevice)(&place->device);
    if (result != CUDA_SUCCESS) return result;
    place->slot = devices_slot(place->device, &result);
    if (place->slot == NO_SLOT) return result;
    bool own = ledger_get(LEDGER_CONTEXT, (uint64_t)(uintptr_t)context, &entry);
    place->owner = own ? entry.owner : 0;
    return own ? CUDA_SUCCESS : devices_take_primary(place->device);
}

CUresult devices_here(struct place *place) {
    CUcontext current = NULL;
    CUresult result = REAL(cuCtxGetCurrent)(&current);
    if (result != CUDA_SUCCESS) return result;
    if (!current) return CUDA_ERROR_INVALID_CONTEXT;
    uint64_t generation = atomic_load(&devices_now.generation);
    if (last.current != current || last.generation != generation) {
        struct place found;
        result = locate(current, &found);
        if (result != CUDA_SUCCESS) return result;
        last.place = found;
        last.current = current;
        last.generation = generation;
        /* Read after the generation: who makes a context sets this first and changes the generation then. */
        if (!atomic_load(&own_contexts) && devices_visible() == 1) {
            atomic_store(&devices_now.sole_slot, found.slot);
            atomic_store(&devices_now.sole_generation, generation);
        }
    }
    *place = last.place;
    return CUDA_SUCCESS;
}

CUresult devices_to_allocate(struct place *place) {
    if (atomic_load_explicit(&devices_now.sole_generation, memory_order_acquire) !=
        atomic_load_explicit(&devices_now.generation, memory_order_acquire))
        return devices_here(place);
    *place = (struct place){.slot = atomic_load_explicit(&devices_now.sole_slot, memory_order_relaxed)};
    return CUDA_SUCCESS;
}

CUresult devices_take_primary(CUdevice device) {
    CUresult result;
    int slot = devices_slot(device, &result);
    if (slot == NO_SLOT) return result;
    if (atomic_load(&devices[device].charged)) return CUDA_SUCCESS;
    struct lease_slot *lease = &client_page()->slot[slot];
    uint64_t bytes = atomic_load(&lease->context), uncharged = 0;
    if (!bytes) return CUDA_SUCCESS;
    result = charge_take(slot, bytes, WIRE_FOR_CONTEXT);
    if (result != CUDA_SUCCESS) return atomic_load(&devices[device].charged) ? CUDA_SUCCESS : result;
    if (atomic_compare_exchange_strong(&devices[device].charged, &uncharged, bytes))
        atomic_fetch_add(&lease->overhead, bytes);
    else
        charge_give(slot, bytes); /* another thread was faster */
    return CUDA_SUCCESS;
}

/* A thread that were cancelled in the driver would leave it locked. */
void devices_lock_primary(CUdevice device) {
    int cancel_before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_before);
    lock_take(&devices[device].primary);
    devices[device].cancel_before = cancel_before;
}

void devices_unlock_primary(CUdevice device) {
    int cancel_before = devices[device].cancel_before;
    lock_drop(&devices[device].primary);
    pthread_setcancelstate(cancel_before, NULL);
}

CUresult devices_keep_primary(CUdevice device) {
    for (;;) {
        CUresult result = devices_take_primary(device);
        if (result != CUDA_SUCCESS) return result;
        devices_lock_primary(device);
        int slot = devices_slot(device, &result);
        if (devices_primary_charged(device) || !atomic_load(&client_page()->slot[slot].context)) return CUDA_SUCCESS;
        devices_unlock_primary(device); /* another thread has just ended it, and given back its charge */
    }
}

void devices_give_primary(CUdevice device) {
    CUresult unused;
    int slot = devices_slot(device, &unused);
    if (slot == NO_SLOT) return;
    uint64_t bytes = atomic_exchange(&devices[device].charged, 0);
    if (bytes) atomic_fetch_sub(&client_page()->slot[slot].overhead, bytes);
    charge_give(slot, bytes);
}

bool devices_primary_charged(CUdevice device) { return atomic_load(&devices[device].charged) != 0; }

static void devices_forget(void) {
    memset(devices, 0, sizeof devices);
    atomic_store(&devices_now.several_contexts, false);
    atomic_store(&own_contexts, false);
    devices_changed();
}
FORGET_IN_CHILD(devices_forget);
