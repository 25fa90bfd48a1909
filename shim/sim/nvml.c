/* The simulated libnvidia-ml.so.1: what nvidia-ml-py, nvidia-smi-like tools and the scheduler ask of a card. */
#include "nvml.h"

#include "card/computing.h"
#include "card/processes.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DRIVER "580.00-simulated"
#define CUDA_VERSION 13000

_Atomic int nvml_users;

static nvmlReturn_t put(char *text, unsigned room, const char *value) {
    if (strlen(value) >= room) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(text, value);
    return NVML_SUCCESS;
}

/* ---- the library and the system ---- */

static pthread_mutex_t users_lock = PTHREAD_MUTEX_INITIALIZER;

EXPORT nvmlReturn_t nvmlInit_v2(void) {
    HOLD(&users_lock);
    bool there = card_open() != NULL;
    if (there) atomic_fetch_add(&nvml_users, 1);
    return there ? NVML_SUCCESS : NVML_ERROR_DRIVER_NOT_LOADED;
}
EXPORT nvmlReturn_t nvmlInit(void) { return nvmlInit_v2(); }
EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags) { return nvmlInit_v2(); }

EXPORT nvmlReturn_t nvmlShutdown(void) {
    if (atomic_load(&nvml_users) == 0) return NVML_ERROR_UNINITIALIZED;
    HOLD(&users_lock);
    if (atomic_fetch_sub(&nvml_users, 1) == 1) card_close(); /* the next user may name another card */
    return NVML_SUCCESS;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t error) {
    static const char *const texts[] = {
        [NVML_SUCCESS] = "The operation was successful",
        [NVML_ERROR_UNINITIALIZED] = "Uninitialized",
        [NVML_ERROR_INVALID_ARGUMENT] = "Invalid Argument",
        [NVML_ERROR_NOT_SUPPORTED] = "Not Supported",
        [NVML_ERROR_NOT_FOUND] = "Not Found",
        [NVML_ERROR_INSUFFICIENT_SIZE] = "Insufficient Size",
        [NVML_ERROR_DRIVER_NOT_LOADED] = "Driver Not Loaded",
        [NVML_ERROR_TIMEOUT] = "Timeout",
        [NVML_ERROR_GPU_IS_LOST] = "GPU is lost",
    };
    bool known = error >= 0 && (size_t)error < sizeof texts / sizeof *texts && texts[error] != NULL;
    return known ? texts[error] : "Unknown Error";
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length) {
    CHECK(version != NULL);
    return put(version, length, DRIVER);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length) {
    CHECK(version != NULL);
    return put(version, length, "13." DRIVER);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    CHECK(version != NULL);
    *version = CUDA_VERSION;
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

/* ---- devices ---- */

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    CHECK(count != NULL);
    *count = card->gpus;
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    CHECK(device != NULL && index < card->gpus);
    *device = &card->gpu[index];
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index) {
    CHECK(valid(device) && index != NULL);
    *index = index_of(device);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor) {
    return nvmlDeviceGetIndex(device, minor);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length) {
    CHECK(valid(device) && uuid != NULL);
    char text[CARD_UUID_TEXT];
    card_uuid_text(device->uuid, text);
    return put(uuid, length, text);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    CHECK(uuid != NULL && device != NULL);
    for (unsigned gpu = 0; gpu < card->gpus; gpu++) {
        char text[CARD_UUID_TEXT];
        card_uuid_text(card->gpu[gpu].uuid, text);
        if (strcmp(text, uuid) != 0) continue;
        *device = &card->gpu[gpu];
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length) {
    CHECK(valid(device) && name != NULL);
    return put(name, length, CARD_NAME);
}

struct pci_info {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, struct pci_info *pci) {
    CHECK(valid(device) && pci != NULL);
    memset(pci, 0, sizeof *pci);
    pci->bus = index_of(device) + 1;
    snprintf(pci->bus_id_legacy, sizeof pci->bus_id_legacy, "0000:%02X:00.0", pci->bus);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
    return NVML_SUCCESS;
}

/* ---- what it does now ---- */

struct memory {
    uint64_t total, free, used;
};

struct memory_v2 {
    unsigned version;
    uint64_t total, reserved, free, used;
};

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, struct memory *memory) {
    CHECK(valid(device) && memory != NULL);
    memory->total = device->units * CARD_UNIT;
    memory->free = card_free(index_of(device)) * CARD_UNIT;
    memory->used = memory->total - memory->free;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, struct memory_v2 *memory) {
    struct memory plain;
    nvmlReturn_t result = nvmlDeviceGetMemoryInfo(device, memory == NULL ? NULL : &plain);
    if (result != NVML_SUCCESS) return result;
    memory->total = plain.total;
    memory->reserved = 0;
    memory->free = plain.free;
    memory->used = plain.used;
    return NVML_SUCCESS;
}

struct utilization {
    unsigned gpu, memory;
};

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, struct utilization *utilization) {
    CHECK(valid(device) && utilization != NULL);
    unsigned gpu = index_of(device);
    card_look(false);
    *utilization = (struct utilization){card_busy(gpu, card_last_period(card_clock(gpu)), 0, NULL), 0};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts) {
    CHECK(valid(device) && milliwatts != NULL);
    *milliwatts = 25000;
    return NVML_SUCCESS;
}

/* ---- processes ---- */

struct process_v1 {
    unsigned pid;
    uint64_t bytes;
};

struct process_v2 {
    unsigned pid;
    uint64_t bytes;
    unsigned gpu_instance, compute_instance;
};

#define NO_INSTANCE 0xffffffffu

/* Fills either layout: `write` stores the i-th entry. */
static nvmlReturn_t processes(nvmlDevice_t device, unsigned *count, void *infos,
                              void (*write)(void *infos, unsigned i, pid_t pid, uint64_t bytes)) {
    CHECK(valid(device) && count != NULL);
    pid_t pids[CARD_PROCESSES];
    uint64_t units[CARD_PROCESSES];
    unsigned found = card_holders(index_of(device), CARD_PROCESSES, pids, units), room = *count;
    *count = found;
    if (found == 0) return NVML_SUCCESS;
    if (found > room || infos == NULL) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < found; i++) write(infos, i, pids[i], units[i] * CARD_UNIT);
    return NVML_SUCCESS;
}

static void write_v1(void *infos, unsigned i, pid_t pid, uint64_t bytes) {
    ((struct process_v1 *)infos)[i] = (struct process_v1){(unsigned)pid, bytes};
}

static void write_v2(void *infos, unsigned i, pid_t pid, uint64_t bytes) {
    ((struct process_v2 *)infos)[i] = (struct process_v2){(unsigned)pid, bytes, NO_INSTANCE, NO_INSTANCE};
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *count,
                                                         struct process_v1 *infos) {
    return processes(device, count, infos, write_v1);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count,
                                                            struct process_v2 *infos) {
    return processes(device, count, infos, write_v2);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                            struct process_v2 *infos) {
    return processes(device, count, infos, write_v2);
}

struct process_utilization {
    unsigned pid;
    uint64_t at; /* microseconds since the epoch */
    unsigned sm, memory, encoder, decoder;
};

/* From CLOCK_MONOTONIC to the time of day, in microseconds: the same at each call until somebody sets the clock, so
 * that who asks for what is new gets nothing twice. */
static uint64_t time_of_day_us(uint64_t monotonic_ns) {
    static _Atomic int64_t kept;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t ahead = (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000 - (int64_t)card_now_us();
    if (llabs(ahead - atomic_load(&kept)) > 1000) atomic_store(&kept, ahead);
    return monotonic_ns / 1000 + (uint64_t)atomic_load(&kept);
}

/* Whom the sample of a period names: one of those who computed in it, each as often as it did. An H200's driver (580)
 * looks who is on the card, and says that all that was done in the period was that one's. */
static unsigned drawn(uint64_t period, unsigned entries, const unsigned *each) {
    uint64_t sum = 0, chance = (period ^ period >> 31) * 0x9e3779b97f4a7c15u;
    for (unsigned entry = 0; entry < entries; entry++) sum += each[entry];
    if (sum == 0) return entries;
    uint64_t at = (chance ^ chance >> 29) * 0xbf58476d1ce4e5b9u % 0xffffffffu % sum;
    for (unsigned entry = 0; entry < entries; entry++) {
        if (at < each[entry]) return entry;
        at -= each[entry];
    }
    return entries;
}

/* A sample of each process that was named since then: what it computed of all that time, and when it was named last. */
EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, struct process_utilization *samples,
                                                    unsigned *count, unsigned long long since_us) {
    CHECK(valid(device) && count != NULL);
    card_look(false);
    unsigned gpu = index_of(device), entries = atomic_load(&card->entries), found = 0, periods = 0;
    unsigned each[CARD_PROCESSES], busy[CARD_PROCESSES] = {0};
    uint64_t named[CARD_PROCESSES] = {0}, last = card_last_period(card_clock(gpu));
    for (uint64_t period = last > CARD_SAMPLES ? last - CARD_SAMPLES + 2 : 1; period <= last; period++) {
        uint64_t at = time_of_day_us(card_period_end_ns(period));
        if (at <= since_us) continue;
        periods++;
        unsigned all = card_busy(gpu, period, entries, each), entry = all > 0 ? drawn(period, entries, each) : entries;
        if (entry == entries) continue;
        busy[entry] += all;
        named[entry] = at;
    }
    for (unsigned entry = 0; entry < entries; entry++) {
        pid_t pid = named[entry] > 0 ? card_pid(entry) : 0; /* also one that has ended, as the real one does */
        if (pid <= 0) continue;
        if (samples != NULL && found < *count)
            samples[found] = (struct process_utilization){(unsigned)pid, named[entry], busy[entry] / periods, 0, 0, 0};
        found++;
    }
    unsigned room = samples != NULL ? *count : 0;
    /* Who asks how many there are finds room for those of the period that ends in between. */
    *count = samples != NULL ? found : found + entries;
    return found == 0 ? NVML_ERROR_NOT_FOUND : found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* ---- not NVML's: how shim.sim makes a card ---- */

EXPORT int sim_card_create(const char *path, unsigned gpus, uint64_t bytes, uint64_t free_delay_us) {
    return card_create(path, gpus, bytes, free_delay_us);
}

/* How fast checkpoints move memory, bytes a second; 0: at once. */
EXPORT void sim_card_speed(uint64_t out, uint64_t in) {
    struct card *held = card_hold();
    atomic_store(&held->out_rate, out);
    atomic_store(&held->in_rate, in);
    card_release();
}

/* What the next checkpointing step (1 lock, 2 checkpoint, 3 restore, 4 unlock) of any process comes to: 1 it fails,
 * 2 it hangs, 3 the process dies, 4 the asker dies once it has asked. */
EXPORT void sim_card_fault(unsigned step, unsigned how) {
    atomic_store(&card_hold()->fault, step | how << 8);
    card_release();
}

/* What each living process's kernels have had of a GPU, in ns on one of their own; CLOCK_MONOTONIC in `at`. */
EXPORT unsigned sim_card_had(unsigned gpu, unsigned room, int *pids, uint64_t *had, uint64_t *at) {
    card_look(true);
    unsigned entries = atomic_load(&card->entries), found = 0;
    union card_moment now = card_clock(gpu);
    *at = now.ns;
    for (unsigned entry = 0; entry < entries && found < room; entry++) {
        if (!card_lives(entry) || (pids[found] = card_pid(entry)) <= 0) continue;
        had[found++] = card_had_ns(gpu, entry, now);
    }
    return found;
}

EXPORT int sim_card_is_whole(const char *path) { return card_is_whole(path); }
