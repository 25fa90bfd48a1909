/* What a program sees of the card: the quota as its size, the claim as what is free. */
#include "charging/charge.h"
#include "client.h"
#include "charging/devices.h"
#include "resolve.h"

#include <string.h>

static const struct lease_slot *slot_at(int slot) { return &client_page()->slot[slot]; }

static uint64_t quota_of(int slot) { return atomic_load(&slot_at(slot)->quota); }

static unsigned int in_32_bits(uint64_t bytes) { return bytes > UINT32_MAX ? UINT32_MAX : (unsigned int)bytes; }

int cuMemGetInfo_v2(size_t *free, size_t *total) {
    struct place place;
    CUresult result = devices_here(&place);
    if (result != CUDA_SUCCESS) return result;
    const struct lease_slot *slot = slot_at(place.slot);
    if (free) *free = lease_claim(slot);
    if (total) *total = atomic_load(&slot->quota);
    return CUDA_SUCCESS;
}

int cuMemGetInfo(unsigned int *free, unsigned int *total) {
    size_t wide_free, wide_total;
    CUresult result = cuMemGetInfo_v2(&wide_free, &wide_total);
    if (result != CUDA_SUCCESS) return result;
    if (free) *free = in_32_bits(wide_free);
    if (total) *total = in_32_bits(wide_total);
    return CUDA_SUCCESS;
}

/* The runtime library asks for the size of every GPU that a program sees before it uses one of them: a GPU that is not
 * the container's has none, and is no reason to fail. */
static CUresult size_of(CUdevice device, uint64_t *bytes) {
    CUresult result;
    int slot = devices_slot(device, &result);
    if (slot == NO_SLOT && result != CUDA_ERROR_NOT_PERMITTED) return result;
    uint64_t quota = slot == NO_SLOT ? 0 : quota_of(slot);
    if (quota < *bytes) *bytes = quota;
    return CUDA_SUCCESS;
}

int cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    CUresult result = REAL(cuDeviceTotalMem_v2)(bytes, device);
    return result != CUDA_SUCCESS || !bytes ? result : size_of(device, bytes);
}

int cuDeviceTotalMem(unsigned int *bytes, CUdevice device) {
    CUresult result = REAL(cuDeviceTotalMem)(bytes, device);
    if (result != CUDA_SUCCESS || !bytes) return result;
    uint64_t wide = UINT32_MAX;
    result = size_of(device, &wide);
    if (result == CUDA_SUCCESS && wide < *bytes) *bytes = in_32_bits(wide);
    return result;
}

/* ---- NVML, which numbers GPUs in its own way: by UUID ---- */

static int hex_digit(char digit) {
    if (digit >= '0' && digit <= '9') return digit - '0';
    if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
    return -1;
}

/* "GPU-d1e2…": 32 hexadecimal digits with dashes somewhere between them. */
static bool parse_uuid(const char *text, uint8_t uuid[LEASE_UUID_SIZE]) {
    int digits = 0;
    if (strncmp(text, "GPU-", 4) != 0) return false;
    for (text += 4; *text; text++) {
        if (*text == '-') continue;
        int value = hex_digit(*text);
        if (value < 0 || digits >= 2 * LEASE_UUID_SIZE) return false;
        uuid[digits / 2] = (uint8_t)(digits % 2 ? uuid[digits / 2] << 4 | value : value);
        digits++;
    }
    return digits == 2 * LEASE_UUID_SIZE;
}

/* The slot of an NVML device, or NULL: then the container may know nothing of that GPU. */
static const struct lease_slot *slot_of_nvml(nvmlDevice_t device) {
    char text[96];
    uint8_t uuid[LEASE_UUID_SIZE];
    if (charge_open() != CUDA_SUCCESS) return NULL;
    if (REAL(nvmlDeviceGetUUID)(device, text, sizeof text) != NVML_SUCCESS || !parse_uuid(text, uuid)) return NULL;
    for (int slot = 0; slot < client_page()->slots && slot < LEASE_SLOTS; slot++)
        if (memcmp(slot_at(slot)->uuid, uuid, sizeof uuid) == 0) return slot_at(slot);
    return NULL;
}

int nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    int result = REAL(nvmlDeviceGetMemoryInfo)(device, memory);
    if (result != NVML_SUCCESS) return result;
    const struct lease_slot *slot = slot_of_nvml(device);
    if (!slot) return NVML_ERROR_NO_PERMISSION;
    memory->total = atomic_load(&slot->quota);
    memory->free = lease_claim(slot);
    memory->used = memory->total - memory->free;
    return NVML_SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    int result = REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory);
    if (result != NVML_SUCCESS) return result;
    const struct lease_slot *slot = slot_of_nvml(device);
    if (!slot) return NVML_ERROR_NO_PERMISSION;
    memory->total = atomic_load(&slot->quota);
    memory->reserved = 0;
    memory->free = lease_claim(slot);
    memory->used = memory->total - memory->free;
    return NVML_SUCCESS;
}
