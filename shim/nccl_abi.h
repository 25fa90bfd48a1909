/* The types and numbers of NCCL that the shim speaks; those of 2.32. */
#ifndef GPUSHARE_NCCL_ABI_H
#define GPUSHARE_NCCL_ABI_H

typedef struct ncclComm *ncclComm_t;

typedef struct {
    char internal[128];
} ncclUniqueId;

enum {
    ncclSuccess = 0,
    ncclSystemError = 2,
    ncclInvalidUsage = 5,
    ncclInProgress = 7,
};

#define NCCL_SPLIT_NOCOLOR (-1)

#endif
