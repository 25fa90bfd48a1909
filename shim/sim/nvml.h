/* What the files of the simulated NVML share. */
#ifndef SIM_NVML_H
#define SIM_NVML_H

#include "card/card.h"

#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_UNKNOWN = 999,
};
typedef int nvmlReturn_t;
typedef const struct card_gpu *nvmlDevice_t;

extern _Atomic int nvml_users; /* calls of nvmlInit that no nvmlShutdown has ended */

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (atomic_load(&nvml_users) == 0) return NVML_ERROR_UNINITIALIZED;                                            \
        if (!card_whole()) return NVML_ERROR_GPU_IS_LOST;                                                              \
        if (!(condition)) return NVML_ERROR_INVALID_ARGUMENT;                                                          \
    } while (0)

static inline bool valid(nvmlDevice_t device) { return device >= card->gpu && device < card->gpu + card->gpus; }
static inline unsigned index_of(nvmlDevice_t device) { return (unsigned)(device - card->gpu); }

#endif
