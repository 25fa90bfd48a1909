/* One call's way through the gate: an operation of NCCL, the end of a group, the launch of a graph. */
#ifndef GPUSHARE_GATE_PASSAGE_H
#define GPUSHARE_GATE_PASSAGE_H

#include "communicators.h"

/* What a thread is doing; all that an operation of the same communicator as the one before has to look at here. */
struct thread {
    _Alignas(64) ncclComm_t comm; /* of its last collective */
    unsigned depth;               /* of groups */
    bool inside;                  /* NCCL */
    uint16_t serial;
    struct gate *gate;
    struct gate_entry *entry;
};
extern __attribute__((visibility("hidden"))) _Thread_local struct thread thread_now;

struct passage {
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

/* The same of a collective, in a few loads and two additions, where nobody asks and the communicator is that of the
 * last time: after a call of the driver each line of the cache that is touched costs. False: not so, and nothing is
 * done. */
static inline bool passage_quick(ncclComm_t comm, int captures) {
    struct thread *thread = &thread_now;
    struct gate_entry *entry = thread->entry;
    if (comm != thread->comm || captures || thread->depth || thread->inside) return false;
    __builtin_prefetch(thread->gate); /* an addition lets nothing pass it */
    if (atomic_load_explicit(&entry->serial, memory_order_relaxed) != thread->serial ||
        atomic_load_explicit(&entry->kind, memory_order_relaxed) & GATE_LEFT)
        return false;
    atomic_fetch_add(&entry->begun, 1);
    if (atomic_load(&thread->gate->asked)) {
        atomic_fetch_sub(&entry->begun, 1);
        return false;
    }
    thread->inside = true;
    return true;
}

static inline int passage_quick_end(int result) {
    struct thread *thread = &thread_now;
    thread->inside = false;
    if (result == ncclSuccess || result == ncclInProgress)
        atomic_fetch_add(&thread->entry->given, 1);
    else
        atomic_fetch_sub(&thread->entry->begun, 1);
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
