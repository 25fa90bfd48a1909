/* cuInit, the devices this process sees, and errors' names. */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static int visible[CARD_GPUS];
static int count;
static bool initialised, forked;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void in_child(void) { forked = true; }

/* Any unambiguous beginning of a UUID names its GPU. */
static int find_uuid(const struct card *card, const char *word) {
    int found = -1;
    for (unsigned gpu = 0; gpu < card->gpus; gpu++) {
        char text[CARD_UUID_TEXT];
        card_uuid_text(card->gpu[gpu].uuid, text);
        if (strncasecmp(text, word, strlen(word)) != 0) continue;
        if (found >= 0) return -1;
        found = (int)gpu;
    }
    return found;
}

static int find_gpu(const struct card *card, const char *word) {
    if (strncmp(word, "GPU-", 4) == 0) return find_uuid(card, word);
    char *end;
    long index = strtol(word, &end, 10);
    return *word != '\0' && *end == '\0' && index >= 0 && index < (long)card->gpus ? (int)index : -1;
}

/* CUDA_VISIBLE_DEVICES as the driver reads it: the first invalid word ends the list, a GPU named twice voids it. */
static void choose(const struct card *card) {
    const char *given = getenv("CUDA_VISIBLE_DEVICES");
    count = 0;
    if (given == NULL) {
        for (unsigned gpu = 0; gpu < card->gpus; gpu++) visible[count++] = (int)gpu;
        return;
    }
    char words[1024], *rest = words;
    snprintf(words, sizeof words, "%s", given);
    for (char *word; (word = strsep(&rest, ",")) != NULL;) {
        word += strspn(word, " ");
        word[strcspn(word, " ")] = '\0';
        int gpu = find_gpu(card, word);
        if (gpu < 0) return;
        for (int i = 0; i < count; i++) {
            if (visible[i] != gpu) continue;
            count = 0;
            return;
        }
        visible[count++] = gpu;
    }
}

CUresult sim_ready(void) { return initialised && !forked ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED; }

int sim_devices(void) { return count; }
unsigned sim_gpu(CUdevice device) { return (unsigned)visible[device]; }
bool sim_valid(CUdevice device) { return device >= 0 && device < count; }

EXPORT CUresult cuInit(unsigned flags) {
    ENTERED();
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (forked) return CUDA_ERROR_NOT_INITIALIZED;
    HOLD(&lock);
    const struct card *card = card_open();
    if (card != NULL && !initialised) {
        choose(card);
        if (count > 0) {
            pthread_atfork(NULL, NULL, in_child);
            initialised = true;
        }
    }
    return initialised ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

EXPORT CUresult cuDriverGetVersion(int *version) {
    ENTERED();
    if (version == NULL) return CUDA_ERROR_INVALID_VALUE;
    *version = SIM_CUDA_VERSION;
    return CUDA_SUCCESS;
}

/* Every query of a device begins like this. */
#define CHECK_DEVICE(out, device)                                                                                      \
    do {                                                                                                               \
        REQUIRE(sim_ready());                                                                                          \
        if ((out) == NULL) return CUDA_ERROR_INVALID_VALUE;                                                            \
        if (!sim_valid(device)) return CUDA_ERROR_INVALID_DEVICE;                                                      \
    } while (0)

EXPORT CUresult cuDeviceGetCount(int *devices) {
    ENTERED_READY();
    if (devices == NULL) return CUDA_ERROR_INVALID_VALUE;
    *devices = count;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    ENTERED();
    CHECK_DEVICE(device, ordinal);
    *device = ordinal;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    ENTERED();
    CHECK_DEVICE(name, device);
    if (length <= 0) return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)length, CARD_NAME);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid_v2(uint8_t *uuid, CUdevice device) {
    ENTERED();
    CHECK_DEVICE(uuid, device);
    memcpy(uuid, card_open()->gpu[card_here(sim_gpu(device))].uuid, 16);
    return CUDA_SUCCESS;
}

ALSO(cuDeviceGetUuid, cuDeviceGetUuid_v2);

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    ENTERED();
    CHECK_DEVICE(bytes, device);
    *bytes = card_open()->gpu[sim_gpu(device)].units * CARD_UNIT;
    return CUDA_SUCCESS;
}

/* What a program may ask about before it uses what this card can do; anything else is 0: not there. */
static const struct {
    int attribute, value;
} ATTRIBUTES[] = {
    {1, 1024},                                /* MAX_THREADS_PER_BLOCK */
    {2, 1024},        {3, 1024},  {4, 64},    /* MAX_BLOCK_DIM_X, Y, Z */
    {5, 2147483647},  {6, 65535}, {7, 65535}, /* MAX_GRID_DIM_X, Y, Z */
    {8, 49152},                               /* MAX_SHARED_MEMORY_PER_BLOCK */
    {10, 32},                                 /* WARP_SIZE */
    {11, 2147483647},                         /* MAX_PITCH */
    {14, 512},                                /* TEXTURE_ALIGNMENT */
    {16, 1},                                  /* MULTIPROCESSOR_COUNT */
    {19, 1},                                  /* CAN_MAP_HOST_MEMORY */
    {41, 1},                                  /* UNIFIED_ADDRESSING */
    {75, 9},          {76, 0},                /* COMPUTE_CAPABILITY_MAJOR, MINOR */
    {83, 1},                                  /* MANAGED_MEMORY */
    {89, 1},                                  /* CONCURRENT_MANAGED_ACCESS */
    {102, 1},                                 /* VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
    {103, 1},                                 /* HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED */
    {115, 1},                                 /* MEMORY_POOLS_SUPPORTED */
    {119, 1},                                 /* MEMPOOL_SUPPORTED_HANDLE_TYPES: file descriptors */
};

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    ENTERED();
    CHECK_DEVICE(value, device);
    if (attribute <= 0) return CUDA_ERROR_INVALID_VALUE;
    *value = attribute == 33 ? (int)sim_gpu(device) + 1 : 0; /* PCI_BUS_ID */
    for (size_t i = 0; i < sizeof ATTRIBUTES / sizeof *ATTRIBUTES; i++)
        if (ATTRIBUTES[i].attribute == attribute) *value = ATTRIBUTES[i].value;
    return CUDA_SUCCESS;
}

/* ---- errors ---- */

static const struct {
    CUresult code;
    const char *name, *text;
} ERRORS[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_UNSUPPORTED_LIMIT, "CUDA_ERROR_UNSUPPORTED_LIMIT", "limit is not supported on this architecture"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "primary context already initialized"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
};

static CUresult describe(CUresult error, const char **text, bool name) {
    if (text == NULL) return CUDA_ERROR_INVALID_VALUE;
    *text = NULL;
    for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++)
        if (ERRORS[i].code == error) *text = name ? ERRORS[i].name : ERRORS[i].text;
    return *text != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char **name) {
    COUNTED();
    return describe(error, name, true);
}
EXPORT CUresult cuGetErrorString(CUresult error, const char **text) {
    COUNTED();
    return describe(error, text, false);
}
