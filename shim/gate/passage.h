/* One call's way through the gate: an operation of NCCL, the end of a group, the launch of a graph. */
#ifndef GPUSHARE_GATE_PASSAGE_H
#define GPUSHARE_GATE_PASSAGE_H

#include "communicators.h"

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
