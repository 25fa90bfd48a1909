/* How hot a card is, and its errors: what tests make of it (sim_card_heat, sim_card_ecc, sim_card_xid). */
#include "nvml.h"

#include <stdlib.h>
#include <time.h>

#define COOL 30 /* degrees Celsius; computing does not warm it */

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned *celsius) {
    CHECK(valid(device) && sensor == 0 && celsius != NULL);
    *celsius = COOL + atomic_load(&device->warmer);
    return NVML_SUCCESS;
}

#define SWITCHES_OFF 95

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, int threshold, unsigned *celsius) {
    CHECK(valid(device) && celsius != NULL);
    if (threshold != 0) return NVML_ERROR_NOT_SUPPORTED; /* NVML_TEMPERATURE_THRESHOLD_SHUTDOWN */
    *celsius = SWITCHES_OFF;
    return NVML_SUCCESS;
}

/* Rows remapped for corrected and for uncorrected errors, whether one is to be at the next reset, and whether that
 * failed. */
EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected,
                                              unsigned *pending, unsigned *failed) {
    CHECK(valid(device) && corrected != NULL && uncorrected != NULL && pending != NULL && failed != NULL);
    *corrected = *uncorrected = *pending = 0;
    *failed = atomic_load(&device->remap_failed);
    return NVML_SUCCESS;
}

enum { CORRECTED, UNCORRECTED };

/* Both since the driver was loaded and in the card's life: none was ever before. */
EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int type, int counter, unsigned long long *count) {
    CHECK(valid(device) && (type == CORRECTED || type == UNCORRECTED) && (counter == 0 || counter == 1) &&
          count != NULL);
    *count = type == UNCORRECTED ? atomic_load(&device->ecc_errors) : 0;
    return NVML_SUCCESS;
}

/* ---- events ---- */

#define XID_CRITICAL_ERROR 8ull /* nvmlEventTypeXidCriticalError, the only one that happens here */

struct event_set {
    bool registered[CARD_GPUS];
    uint32_t seen[CARD_GPUS]; /* of card_gpu.xids */
};

struct event_data {
    nvmlDevice_t device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

EXPORT nvmlReturn_t nvmlEventSetCreate(struct event_set **set) {
    CHECK(set != NULL);
    *set = calloc(1, sizeof **set);
    return *set == NULL ? NVML_ERROR_UNKNOWN : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlEventSetFree(struct event_set *set) {
    free(set);
    return NVML_SUCCESS;
}

/* Tells of what happens from now on. */
EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, struct event_set *set) {
    CHECK(valid(device) && set != NULL);
    if (types & ~XID_CRITICAL_ERROR) return NVML_ERROR_NOT_SUPPORTED;
    set->registered[index_of(device)] = true;
    set->seen[index_of(device)] = atomic_load(&device->xids);
    return NVML_SUCCESS;
}

static bool next_event(struct event_set *set, struct event_data *data) {
    for (unsigned gpu = 0; gpu < card->gpus; gpu++) {
        const struct card_gpu *of = &card->gpu[gpu];
        if (!set->registered[gpu] || set->seen[gpu] == atomic_load(&of->xids)) continue;
        set->seen[gpu] = atomic_load(&of->xids); /* of several at once the last is reported */
        *data = (struct event_data){of, XID_CRITICAL_ERROR, atomic_load(&of->xid), 0xffffffffu, 0xffffffffu};
        return true;
    }
    return false;
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(struct event_set *set, struct event_data *data, unsigned timeout_ms) {
    CHECK(set != NULL && data != NULL);
    for (unsigned waited = 0; !next_event(set, data); waited++) {
        if (waited >= timeout_ms) return NVML_ERROR_TIMEOUT;
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    return NVML_SUCCESS;
}

/* ---- not NVML's: for tests ---- */

static struct card_gpu *gpu_of(unsigned gpu) { return &card_open()->gpu[gpu % CARD_GPUS]; }

/* So many degrees warmer than it is by itself. */
EXPORT void sim_card_heat(unsigned gpu, unsigned degrees) { atomic_store(&gpu_of(gpu)->warmer, degrees); }

/* It has had so many uncorrected memory errors. */
EXPORT void sim_card_ecc(unsigned gpu, unsigned errors) { atomic_store(&gpu_of(gpu)->ecc_errors, errors); }

/* A row of its memory could not be remapped. */
EXPORT void sim_card_remap(unsigned gpu, unsigned failed) { atomic_store(&gpu_of(gpu)->remap_failed, failed); }

/* It reports this critical error, once. */
EXPORT void sim_card_xid(unsigned gpu, unsigned xid) {
    atomic_store(&gpu_of(gpu)->xid, xid);
    atomic_fetch_add(&gpu_of(gpu)->xids, 1);
}
