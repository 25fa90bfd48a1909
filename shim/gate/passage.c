#include "passage.h"

#include "fork.h"
#include "tallies.h"

#include <stdlib.h>
#include <string.h>

#define FEW 16

_Thread_local struct thread thread_now;

static _Thread_local struct {
    size_t count, room;
    struct gate_step few[FEW], *many; /* `many` once they are more than a few */
} group;

static _Atomic bool ever;

static void passages_forget(void) {
    memset(&thread_now, 0, sizeof thread_now);
    memset(&group, 0, sizeof group);
}
FORGET_IN_CHILD(passages_forget);

static struct gate_step *grouped(void) { return group.many ? group.many : group.few; }

static void add_to_group(const struct gate_step *step) {
    struct gate_step *steps = grouped(), *last = group.count ? &steps[group.count - 1] : NULL;
    if (last && last->entry == step->entry && last->serial == step->serial) {
        last->count += step->count;
        return;
    }
    if (group.count >= FEW && group.count >= group.room) {
        size_t room = 4 * group.count;
        struct gate_step *wider = realloc(group.many, room * sizeof *wider);
        if (!wider) return;
        if (!group.many) memcpy(wider, group.few, sizeof group.few);
        group.many = steps = wider;
        group.room = room;
    }
    steps[group.count++] = *step;
}

static void forget_group(void) {
    free(group.many);
    group.many = NULL;
    group.count = group.room = 0;
}

bool passage_in_group(void) { return thread_now.depth > 0; }

bool passage_ever(void) { return atomic_load_explicit(&ever, memory_order_relaxed); }

bool passage_enter(struct passage *passage) {
    *passage = (struct passage){.gate = gate_here(), .steps = &passage->one, .inner = thread_now.inside};
    if (!passage_ever()) atomic_store(&ever, true);
    thread_now.inside = true;
    return passage->gate && !passage->inner;
}

static void remember(const struct passage *passage, ncclComm_t comm) {
    thread_now.comm = comm;
    thread_now.gate = passage->gate;
    thread_now.serial = passage->one.serial;
    thread_now.entry = &passage->gate->entry[passage->one.entry];
}

bool passage_begin(struct passage *passage, ncclComm_t comm, enum gate_kind kind, int peer, uint64_t capture) {
    if (!passage_enter(passage) || !communicators_step(passage->gate, comm, kind, peer, &passage->one)) return true;
    if (capture) {
        tally_add(TALLY_CAPTURE, capture, &passage->one, 1);
    } else if (thread_now.depth) {
        add_to_group(&passage->one);
    } else {
        passage->count = 1;
        if (gate_pass(passage->gate, &passage->one, 1)) {
            if (kind == GATE_COLLECTIVE) remember(passage, comm);
            return true;
        }
        thread_now.inside = false;
        return false;
    }
    return true;
}

int passage_end(struct passage *passage, int result) {
    if (!passage->inner) thread_now.inside = false;
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

void passage_group_started(void) { thread_now.depth++; }

void passage_begin_group(struct passage *passage, bool launches) {
    if (!passage_enter(passage) || thread_now.depth != 1 || !launches) return;
    passage->steps = grouped();
    passage->count = group.count;
    if (passage->count && !gate_pass(passage->gate, passage->steps, passage->count)) passage->count = 0;
}

int passage_end_group(struct passage *passage, int result) {
    passage_end(passage, result);
    if (passage->inner || !thread_now.depth || --thread_now.depth) return result;
    forget_group();
    communicators_group_ended(result);
    return result;
}
