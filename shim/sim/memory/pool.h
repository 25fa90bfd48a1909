/* What pool.c, which hands memory out, and poolcalls.c, which answers the program, share. */
#ifndef SIM_POOL_H
#define SIM_POOL_H

#include "driver.h"

enum pool_attribute {
    REUSE_FOLLOW_EVENTS = 1,
    REUSE_INTERNAL = 3,
    RELEASE_THRESHOLD = 4,
    RESERVED_CURRENT = 5,
    RESERVED_HIGH = 6,
    USED_CURRENT = 7,
    USED_HIGH = 8,
};

struct pool {
    CUdevice device;
    bool host;      /* takes nothing from a card */
    bool destroyed; /* goes away with its last allocation */
    int handle_types;
    int file; /* an imported pool: the exporter's memory file; else −1 */
    int reuse[REUSE_INTERNAL + 1];
    uint64_t threshold, reserved, reserved_high, used, used_high, most;
    struct segment *segments;
    struct pool *next;
};

/* Everything below and every field above is under this lock. */
extern pthread_mutex_t pool_lock;
extern struct pool *pool_of_device[CARD_GPUS]; /* the current one, if it is not the default one */

struct pool *pool_new(CUdevice device);
/* True for a pool that exists and has not been destroyed. */
bool pool_known(const struct pool *pool);
struct pool *pool_default(CUdevice device);
struct pool *pool_default_of_host(void);
/* Gives back free segments while more than `keep` bytes stay reserved. */
void pool_trim(struct pool *pool, uint64_t keep);
/* Ends a destroyed pool once nothing is allocated from it. */
void pool_end_if_unused(struct pool *pool);

#endif
