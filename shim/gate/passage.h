/* One call's way through the gate: an operation of NCCL, the end of a group, the launch of a graph. */
#ifndef GPUSHARE_GATE_PASSAGE_H
#define GPUSHARE_GATE_PASSAGE_H

#include "communicators.h"

/* What a thread is doing; all that an operation of the same communicator as the one before has to look at here. */
struct thread {
    unsigned depth; /* of groups */
    bool inside;    /* NCCL */
    uint16_t serial;
    ncclComm_t comm; /* of its last collective */
    struct gate *gate;
    struct gate_entry *entry;
};
extern _Thread_local struct thread thread_now;

struct passage {
    struct gate_entry *quick; /* counted by the short way */
    struct gate *gate;
    struct gate_step one, *steps;
    size_t count;
    bool inner; /* of a call that NCCL makes of its own */
};

/* Before NCCL is called for something that is not counted. False: by itself, or there is no gate. */
bool passage_enter(struct passage *passage);

/* Before NCCL is called. False: the communicator is gone, and NCCL must not be called. `capture`: the number of the
 * capture that only records the operation; 0: it is launched. */
bool passage_begin(struct passage *passage, ncclComm_t comm, enum gate_kind kind, int peer, uint64_t capture);

/* NCCL has returned; its result. */
int passage_end(struct passage *passage, int result);

/* The same of a collective. Where nobody asks, no group is open and the communicator is that of the last time, this is
 * two additions and a few loads; after a call of the driver each line of the cache that is touched costs. */
static inline bool passage_begin_collective(struct passage *passage, ncclComm_t comm, uint64_t capture) {
    struct thread *thread = &thread_now;
    struct gate_entry *entry = thread->entry;
    __builtin_prefetch(thread->gate); /* an addition lets nothing pass it */
    if (comm == thread->comm && entry && !thread->depth && !thread->inside && !capture &&
        atomic_load_explicit(&entry->serial, memory_order_relaxed) == thread->serial &&
        !(atomic_load_explicit(&entry->kind, memory_order_relaxed) & GATE_LEFT)) {
        atomic_fetch_add(&entry->begun, 1);
        if (!atomic_load(&thread->gate->asked)) {
            thread->inside = true;
            passage->quick = entry;
            return true;
        }
        atomic_fetch_sub(&entry->begun, 1);
    }
    return passage_begin(passage, comm, GATE_COLLECTIVE, 0, capture);
}

static inline int passage_end_collective(struct passage *passage, int result) {
    if (!passage->quick || (result != ncclSuccess && result != ncclInProgress)) return passage_end(passage, result);
    thread_now.inside = false;
    atomic_fetch_add(&passage->quick->given, 1);
    return result;
}

/* Before and after CUDA launches a graph that was captured, or is captured as part of another. */
void passage_begin_graph(struct passage *passage, uint64_t exec, uint64_t capture);
int passage_end_graph(struct passage *passage, int result);

/* NCCL has begun a group; before and after it ends one. `launches`: what is in it is begun. */
void passage_group_started(void);
void passage_begin_group(struct passage *passage, bool launches);
int passage_end_group(struct passage *passage, int result);

/* Whether this thread is in a group. */
bool passage_in_group(void);

/* Whether NCCL was ever called through the gate. */
bool passage_ever(void);

#endif
