/* Plain device memory: charged to the current context's GPU, by size. */
#include "charging/charge.h"
#include "charging/devices.h"
#include "charging/held.h"
#include "resolve.h"

#define PITCH_STEP 512 /* no device aligns its rows more coarsely */

__attribute__((cold, noinline)) static CUresult refused(CUresult result, const struct place *place, uint64_t bytes) {
    charge_give(place->slot, bytes);
    return charge_refused(place->slot, bytes, result);
}

__attribute__((cold, noinline)) static CUresult not_noted(const struct place *place, uint64_t bytes,
                                                          CUdeviceptr address) {
    REAL(cuMemFree_v2)(address);
    charge_give(place->slot, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Ends a charged allocation: notes it, or gives its charge back if the driver refused. */
static CUresult settle(CUresult result, const struct place *place, uint64_t bytes, CUdeviceptr address) {
    if (result != CUDA_SUCCESS) return refused(result, place, bytes);
    struct ledger_entry entry = {
        .kind = LEDGER_POINTER, .key = address, .bytes = bytes, .slot = (uint8_t)place->slot, .owner = place->owner};
    return held_note(&entry) ? CUDA_SUCCESS : not_noted(place, bytes, address);
}

/* Where to allocate, with `bytes` taken from the lease there. */
static CUresult prepare(struct place *place, uint64_t bytes) {
    CUresult result = devices_to_allocate(place);
    return result == CUDA_SUCCESS ? charge_take(place->slot, bytes, WIRE_FOR_MEMORY) : result;
}

int cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    struct place place;
    uint64_t charge = charge_of(bytes);
    CUresult result = prepare(&place, charge);
    if (result != CUDA_SUCCESS) return result;
    result = CHARGED_CALL(REAL(cuMemAlloc_v2)(address, bytes));
    return settle(result, &place, charge, result == CUDA_SUCCESS ? *address : 0);
}

int cuMemAlloc(CUdeviceptr_v1 *address, unsigned int bytes) {
    struct place place;
    uint64_t charge = charge_of(bytes);
    CUresult result = prepare(&place, charge);
    if (result != CUDA_SUCCESS) return result;
    result = CHARGED_CALL(REAL(cuMemAlloc)(address, bytes));
    return settle(result, &place, charge, result == CUDA_SUCCESS ? *address : 0);
}

int cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned int flags) {
    struct place place;
    uint64_t charge = charge_of(bytes);
    CUresult result = prepare(&place, charge);
    if (result != CUDA_SUCCESS) return result;
    result = CHARGED_CALL(REAL(cuMemAllocManaged)(address, bytes, flags));
    return settle(result, &place, charge, result == CUDA_SUCCESS ? *address : 0);
}

/* The most that a pitched allocation can take; the driver chooses the pitch. */
static uint64_t pitched(uint64_t width, uint64_t height) {
    uint64_t pitch = width > UINT64_MAX - PITCH_STEP ? UINT64_MAX : (width + PITCH_STEP - 1) & ~(PITCH_STEP - 1ull);
    return height && pitch > UINT64_MAX / height ? UINT64_MAX : charge_of(pitch * height);
}

/* Gives back what the driver's own pitch made smaller. */
static uint64_t correct(const struct place *place, uint64_t charged, uint64_t pitch, uint64_t height) {
    uint64_t actual = charge_of(pitch * height);
    if (actual >= charged) return charged;
    charge_give(place->slot, charged - actual);
    return actual;
}

int cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned int element) {
    struct place place;
    uint64_t charge = pitched(width, height);
    CUresult result = prepare(&place, charge);
    if (result != CUDA_SUCCESS) return result;
    result = CHARGED_CALL(REAL(cuMemAllocPitch_v2)(address, pitch, width, height, element));
    if (result == CUDA_SUCCESS) charge = correct(&place, charge, *pitch, height);
    return settle(result, &place, charge, result == CUDA_SUCCESS ? *address : 0);
}

int cuMemAllocPitch(CUdeviceptr_v1 *address, unsigned int *pitch, unsigned int width, unsigned int height,
                    unsigned int element) {
    struct place place;
    uint64_t charge = pitched(width, height);
    CUresult result = prepare(&place, charge);
    if (result != CUDA_SUCCESS) return result;
    result = CHARGED_CALL(REAL(cuMemAllocPitch)(address, pitch, width, height, element));
    if (result == CUDA_SUCCESS) charge = correct(&place, charge, *pitch, height);
    return settle(result, &place, charge, result == CUDA_SUCCESS ? *address : 0);
}

#define FREE(address, call)                                                                                            \
    struct ledger_entry entry;                                                                                         \
    bool known = ledger_take(LEDGER_POINTER, address, &entry);                                                         \
    return held_end_free(call, known, &entry, NULL)

int cuMemFree_v2(CUdeviceptr address) { FREE(address, REAL(cuMemFree_v2)(address)); }

int cuMemFree(CUdeviceptr_v1 address) { FREE(address, REAL(cuMemFree)(address)); }
