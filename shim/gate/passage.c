#include "passage.h"

#include "fork.h"
#include "tallies.h"

#include <stdlib.h>
#include <string.h>

#define FEW 16

static _Thread_local struct thread {
    unsigned depth; /* of groups */
    bool inside;    /* NCCL */
    size_t count, room;
    struct gate_step few[FEW], *many; /* of the group: `many` once they are more than a few */
} thread;

static _Atomic bool ever;

static void passages_forget(void) { memset(&thread, 0, sizeof thread); }
FORGET_IN_CHILD(passages_forget);

static struct gate_step *grouped(void) { return thread.many ? thread.many : thread.few; }

static void add_to_group(const struct gate_step *step) {
    struct gate_step *steps = grouped(), *last = thread.count ? &steps[thread.count - 1] : NULL;
    if (last && last->entry == step->entry && last->serial == step->serial) {
        last->count += step->count;
        return;
    }
    if (thread.count >= FEW && thread.count >= thread.room) {
        size_t room = 4 * thread.count;
        struct gate_step *wider = realloc(thread.many, room * sizeof *wider);
        if (!wider) return;
        if (!thread.many) memcpy(wider, thread.few, sizeof thread.few);
        thread.many = steps = wider;
        thread.room = room;
    }
    steps[thread.count++] = *step;
}

static void forget_group(void) {
    free(thread.many);
    thread.many = NULL;
    thread.count = thread.room = 0;
}

bool passage_in_group(void) { return thread.depth > 0; }

bool passage_ever(void) { return atomic_load_explicit(&ever, memory_order_relaxed); }

bool passage_enter(struct passage *passage) {
    *passage = (struct passage){.gate = gate_here(), .steps = &passage->one, .inner = thread.inside};
    if (!passage_ever()) atomic_store(&ever, true);
    thread.inside = true;
    return passage->gate && !passage->inner;
}

bool passage_begin(struct passage *passage, ncclComm_t comm, enum gate_kind kind, int peer, uint64_t capture) {
    if (!passage_enter(passage) || !communicators_step(passage->gate, comm, kind, peer, &passage->one)) return true;
    if (capture) {
        tally_add(TALLY_CAPTURE, capture, &passage->one, 1);
    } else if (thread.depth) {
        add_to_group(&passage->one);
    } else {
        passage->count = 1;
        if (gate_pass(passage->gate, &passage->one, 1)) return true;
        thread.inside = false;
        return false;
    }
    return true;
}

int passage_end(struct passage *passage, int result) {
    if (!passage->inner) thread.inside = false;
    if (passage->count)
        gate_end(passage->gate, passage->steps, passage->count, result == ncclSuccess || result == ncclInProgress);
    return result;
}

void passage_begin_graph(struct passage *passage, uint64_t exec, uint64_t capture) {
    *passage = (struct passage){.gate = gate_here()};
    if (capture) tally_pass_on(TALLY_EXEC, exec, TALLY_CAPTURE, capture);
    if (capture || !passage->gate) return;
    passage->steps = tally_copy(passage->gate, TALLY_EXEC, exec, &passage->count);
    if (passage->count && !gate_pass(passage->gate, passage->steps, passage->count)) passage->count = 0;
}

int passage_end_graph(struct passage *passage, int result) {
    if (passage->count) gate_end(passage->gate, passage->steps, passage->count, result == 0);
    free(passage->steps);
    return result;
}

void passage_group_started(void) { thread.depth++; }

void passage_begin_group(struct passage *passage, bool launches) {
    if (!passage_enter(passage) || thread.depth != 1 || !launches) return;
    passage->steps = grouped();
    passage->count = thread.count;
    if (passage->count && !gate_pass(passage->gate, passage->steps, passage->count)) passage->count = 0;
}

int passage_end_group(struct passage *passage, int result) {
    passage_end(passage, result);
    if (passage->inner || !thread.depth || --thread.depth) return result;
    forget_group();
    communicators_group_ended(result);
    return result;
}
