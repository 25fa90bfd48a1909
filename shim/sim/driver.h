/* The simulated libcuda.so.1: what its parts share. Types and numbers are those of CUDA 13.0's driver API. */
#ifndef SIM_DRIVER_H
#define SIM_DRIVER_H

#include "card/card.h"
#include "card/computing.h"
#include "card/processes.h"
#include "card/units.h"
#include "gate.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
/* The same function under another name, such as the one for per-thread default streams. */
#define ALSO(name, of) extern __typeof__(of) name __attribute__((alias(#of), visibility("default")))

/* Every entry point begins with COUNTED, or with ENTERED, which waits as well while this process is locked, or with
 * LOOKS, which does not: tests ask by sim_calls(name) how often the driver was entered. */
struct entry {
    const char *name;
    _Atomic uint64_t calls;
};
#define COUNTED()                                                                                                      \
    do {                                                                                                               \
        static struct entry entry __attribute__((section("sim_entries"), used)) = {.name = __func__};                  \
        atomic_fetch_add_explicit(&entry.calls, 1, memory_order_relaxed);                                              \
    } while (0)
#define ENTERED()                                                                                                      \
    COUNTED();                                                                                                         \
    __attribute__((cleanup(gate_leave), unused)) struct gate_visit sim_visit = {gate_enter(__func__), __func__}
#define LOOKS()                                                                                                        \
    COUNTED();                                                                                                         \
    __attribute__((cleanup(gate_leave), unused)) struct gate_visit sim_visit = {gate_look(), __func__}

/* Returns what the call returned, unless that is success. */
#define REQUIRE(call)                                                                                                  \
    do {                                                                                                               \
        CUresult required = (call);                                                                                    \
        if (required != CUDA_SUCCESS) return required;                                                                 \
    } while (0)
/* ENTERED, where cuInit has to have been called; and where the thread has to have a context that works: this one. */
#define ENTERED_READY()                                                                                                \
    ENTERED();                                                                                                         \
    REQUIRE(sim_ready())
#define ENTERED_IN(context)                                                                                            \
    ENTERED();                                                                                                         \
    struct context *context;                                                                                           \
    REQUIRE(context_current(&context))

/* An entry point that only calls what does the work, as several of one kind do. */
#define ENTRY(name, params, call)                                                                                      \
    EXPORT CUresult name params {                                                                                      \
        ENTERED();                                                                                                     \
        return call;                                                                                                   \
    }                                                                                                                  \
    extern __typeof__(name) name

/* Room for what a handle stands for, all zero. Unlike calloc's, it is what was freed last: a driver gives a handle out
 * again as soon as it can. */
static inline void *sim_new(size_t bytes) {
    void *made = malloc(bytes);
    __asm__ volatile("" : "+r"(made)); /* or the compiler makes a calloc of it */
    return made != NULL ? memset(made, 0, bytes) : NULL;
}

/* ---- checkpoint.c ---- */

/* From now on this process can be locked and checkpointed from outside. */
void checkpoint_serve(void);

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct context *CUcontext;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef struct module *CUmodule;
typedef struct function *CUfunction;
typedef struct pool *CUmemoryPool;
typedef struct graph *CUgraph;
typedef struct node *CUgraphNode;
typedef struct exec *CUgraphExec;
typedef struct array *CUarray;
typedef unsigned long long CUmemHandle; /* CUmemGenericAllocationHandle */

struct location {
    int type; /* LOCATION_DEVICE, … */
    int id;
};
enum { LOCATION_DEVICE = 1, LOCATION_HOST = 2 };
enum { TYPE_PINNED = 1, TYPE_MANAGED = 2 };
enum { HANDLE_NONE = 0, HANDLE_POSIX_FD = 1 };

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_UNSUPPORTED_LIMIT = 215,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_ILLEGAL_STATE = 401,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE = 708,
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_UNKNOWN = 999,
};

#define SIM_CUDA_VERSION 13000
#define SIM_CONTEXT_UNITS 33 /* 66 MiB, as in the paper that this product stands on */

/* ---- device.c: the GPUs this process sees, in its order ---- */

/* CUDA_SUCCESS once cuInit has succeeded here; a forked child of such a process never gets there, as on a real card. */
CUresult sim_ready(void);
int sim_devices(void);
/* The card's number of a visible device. Check sim_valid first. */
unsigned sim_gpu(CUdevice device);
bool sim_valid(CUdevice device);

/* ---- heap.c: this process's memory on each GPU ---- */

enum block_kind {
    BLOCK_DEVICE,
    BLOCK_MANAGED,
    BLOCK_POOL,   /* a pool's segment: pool.c knows what is in it */
    BLOCK_HIDDEN, /* memory without an address of its own: arrays, and what VMM maps elsewhere */
};

/* Where an address belongs. */
struct place {
    unsigned gpu;
    CUdeviceptr base;
    uint64_t bytes;
    enum block_kind kind;
    const void *owner;
};

/* `owner` is the context that the memory goes away with. */
CUresult heap_take(unsigned gpu, const void *owner, uint64_t bytes, enum block_kind kind, CUdeviceptr *address);
CUresult heap_give(CUdeviceptr address);
void heap_drop(unsigned gpu, const void *owner);
bool heap_find(CUdeviceptr address, struct place *place);
/* Whole units of memory, and where in which file they lie: what VMM maps. */
CUresult heap_take_hidden(unsigned gpu, uint64_t bytes, CUdeviceptr *address, int *file, off_t *offset);
/* The memory file of a GPU, made if need be; −1 if that cannot be. */
int heap_open(unsigned gpu);
/* Does this process have managed memory? */
bool heap_has_managed(void);
/* In which file an address of the heap lies, and where. */
int heap_file(CUdeviceptr address, off_t *offset);
/* Is the address in the simulated memory's address space at all? */
bool heap_is_ours(CUdeviceptr address);

/* Units that have no address: what a context takes. */
struct units {
    uint64_t count;
    uint32_t *taken;
};
CUresult units_take(unsigned gpu, uint64_t count, struct units *units);
void units_give(unsigned gpu, struct units *units);

/* ---- context.c ---- */

#define CONTEXT_LIMITS 11

struct context {
    CUdevice device;
    bool alive;
    unsigned flags;
    unsigned users;                /* primary contexts: how often retained */
    CUresult broken;               /* an error of the device that stays until the context is destroyed */
    struct units overhead, limits; /* beside the fixed part, what raised limits take */
    size_t limit[CONTEXT_LIMITS];
};

/* The calling thread's context, or why it has none that works. */
CUresult context_current(struct context **context);

CUresult context_create(CUcontext *context, unsigned flags, CUdevice device);
CUresult context_retain(CUdevice device, struct context **context);
CUresult context_release(CUdevice device);

/* ---- address.c ---- */

/* True if a program may touch these bytes as device memory. */
bool address_covers(CUdeviceptr address, uint64_t bytes);
/* Where an address belongs, whichever way it was allocated. */
bool address_find(CUdeviceptr address, struct place *place);
CUresult address_free(CUdeviceptr address);

/* ---- vmm.c ---- */

bool vmm_find(CUdeviceptr address, struct place *place);
bool vmm_covers(CUdeviceptr address, uint64_t bytes);
CUresult vmm_reserve(uint64_t bytes, CUdeviceptr *address);
void vmm_unreserve(CUdeviceptr address, uint64_t bytes);
/* A window on a file, as the importer of somebody else's memory has it. */
CUresult vmm_map_file(int file, off_t offset, uint64_t bytes, unsigned gpu, CUdeviceptr *address);
bool vmm_unmap_file(CUdeviceptr address);

/* ---- physical.c ---- */

/* Keeps the physical memory of a handle alive, as a mapping does; NULL if there is no such handle. */
void *physical_attach(CUmemHandle handle);
void physical_detach(void *attached);

/* ---- pool.c ---- */

bool pool_find(CUdeviceptr address, struct place *place);
CUresult pool_free(CUdeviceptr address);
CUresult pool_take(CUmemoryPool pool, uint64_t bytes, CUdeviceptr *address);
CUmemoryPool pool_current(CUdevice device);
/* What a real card does when it synchronises: pools give back what they hold beyond their thresholds. */
void pool_settle(void);
void pool_forget(CUdevice device);
bool pool_exportable(CUmemoryPool pool, unsigned *gpu);
/* A pool that lives in another process; `file` is that process's memory file, and the pool's from now on. */
CUmemoryPool pool_import(int file);
int pool_imported_file(CUmemoryPool pool);

/* ---- graphmemory.c: memory that is allocated by running a graph ---- */

struct graph_memory; /* one allocation node's: an address for good, physical memory while it is allocated */

struct graph_memory *graph_memory_new(CUdevice device, uint64_t bytes);
void graph_memory_hold(struct graph_memory *memory);
void graph_memory_drop(struct graph_memory *memory);
CUdeviceptr graph_memory_address(const struct graph_memory *memory);
CUdevice graph_memory_device(const struct graph_memory *memory);
CUresult graph_memory_prepare(struct graph_memory *memory);
CUresult graph_memory_take(struct graph_memory *memory, bool again);
/* CUDA_ERROR_INVALID_VALUE if the address is no allocated graph memory. */
CUresult graph_memory_free(CUdeviceptr address);
bool graph_memory_find(CUdeviceptr address, struct place *place);
void graph_memory_forget(CUdevice device);

/* ---- graph.c ---- */

enum node_type {
    NODE_KERNEL = 0,
    NODE_COPY = 1,
    NODE_SET = 2,
    NODE_HOST = 3,
    NODE_CHILD = 4,
    NODE_EMPTY = 5,
    NODE_ALLOC = 10,
    NODE_FREE = 11
};

/* The kernels that the card knows, by their names. */
enum kernel { KERNEL_UNKNOWN, KERNEL_COMPLEMENT, KERNEL_COMPUTE, KERNEL_COLLECTIVE };

/* They have two words of parameters: a captured launch keeps them by value. */
struct launch {
    enum kernel kernel;
    uint64_t threads;
    uint64_t words[2];
};

struct work {
    enum node_type type;
    union {
        struct launch launch;
        struct {
            CUdeviceptr to, from;
            uint64_t bytes;
        } copy;
        struct {
            CUdeviceptr to;
            uint64_t value, width, count;
        } set;
        struct {
            void (*function)(void *);
            void *data;
        } host;
        struct {
            struct graph_memory *memory;
            uint64_t asked;
        } alloc;
        CUdeviceptr free;
        CUgraph child;
    };
};

CUgraph graph_new(void);
CUresult graph_add(CUgraph graph, const struct work *work, CUgraphNode *node);
/* ---- stream.c ---- */

struct stream {
    CUdevice device;
    struct context *context;
    CUgraph capturing;
    uint64_t end; /* the clock's reading when all that it was given is done: card_compute */
};

/* The stream that a handle names: a default stream is one per process. */
struct stream *stream_of(CUstream handle);
/* When what it was given will be done. The default streams wait for all others, so theirs is the process's end. */
uint64_t stream_end(CUstream handle);

/* ---- work.c ---- */

/* Does the work now, or, on a stream that captures, notes it down in the stream's graph. */
CUresult work_submit(CUstream stream, const struct work *work);
CUresult work_run(CUstream stream, const struct work *work);

/* ---- host.c, old.c ---- */

bool host_find(CUdeviceptr address, struct place *place);
bool old_find(CUdeviceptr address, struct place *place);

#endif
