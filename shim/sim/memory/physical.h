/* What physical.c, the memory itself, and vmm.c, where it is mapped, share. */
#ifndef SIM_PHYSICAL_H
#define SIM_PHYSICAL_H

#include "driver.h"

struct properties { /* CUmemAllocationProp */
    int type;
    int handle_types;
    struct location location;
    void *unused;
    struct {
        unsigned char compression, rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
};
_Static_assert(sizeof(struct properties) == 32, "CUDA's layout");

struct physical {
    unsigned gpu;
    unsigned handles, mappings;
    uint64_t bytes;
    bool whole; /* mapped by vmm_map_file: mapping, address and memory go together */
    struct properties properties;
    int file;
    off_t offset;
    CUdeviceptr hidden; /* in the heap; 0: a file of its own */
    struct units units; /* of a file of its own; none when imported */
};

/* Everything below and every field above is under this lock. */
extern pthread_mutex_t physical_lock;

/* A new handle of physical memory, 0 if there is no room for one. */
CUmemHandle handle_new(struct physical *physical);
struct physical *handle_get(CUmemHandle handle);
/* Ends physical memory that no handle and no mapping needs. */
void physical_end(struct physical *physical);
/* Memory that another process has exported: its file, none of this process's units. */
struct physical *physical_import(int given, off_t offset, uint64_t bytes, unsigned gpu);

#endif
