/* cuCheckpointProcess…: one process has another's work on the card stopped, and its memory moved to the host and back.
 *
 * As on a real card, the process itself carries out each step, in a thread that the driver keeps: one that is frozen
 * does not answer, and its asker waits with it; and what was begun is brought to its end even if the asker dies. An
 * order is one word that the asker swaps in, once the one before has been answered. Locked means: no thread is in the
 * driver, none enters it, and the card has done all that it was given.
 *
 * Refused, as there: managed memory and memory shared by IPC (CUDA_ERROR_NOT_SUPPORTED; the process stays locked). And,
 * as there (two H100, driver 580), memory that is shared otherwise (cuMem handles, pools, peer access, multicast) is
 * taken out without a word, and the restore is what is refused (gate_tie; the process stays checkpointed). */
#include "driver.h"

#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum state { RUNNING = GATE_OPEN, LOCKED = 1, CHECKPOINTED = GATE_AWAY, FAILED = 3 }; /* CUprocessState */
enum step { LOCK = 1, CHECKPOINT = 2, RESTORE = 3, UNLOCK = 4 };

/* An order: what to do, how long a lock may wait for running calls, and a number, so that none is like the last. */
#define STEP(order) ((order) & 7)
#define PATIENCE_MS(order) ((order) >> 3 & 0x1fffff)
#define NUMBER(order) ((order) >> 24)
#define LONGEST_MS 0x1fffffu
#define ORDER(number, step, patience_ms) ((number) << 24 | (patience_ms) << 3 | (step))

#define RATE_EVERY_SECONDS 0.01 /* how often a move looks at the rate */
#define LIVES_EVERY_MS 50       /* how often an asker looks whether the one it asks still lives */

/* ---- the driver's thread ---- */

static void enter_state(struct card_checkpoint *mine, enum state state) {
    atomic_store(&mine->state, state);
    gate_wake(&mine->state);
}

/* False: not by then (0: however long it takes). */
static bool nobody_inside(struct card_checkpoint *mine, uint64_t deadline_us) {
    for (uint32_t inside; (inside = atomic_load(&mine->inside)) > 0;) {
        uint64_t now = card_now_us();
        if (deadline_us > 0 && now >= deadline_us) return false;
        gate_wait(&mine->inside, inside, deadline_us > 0 ? (unsigned)((deadline_us - now + 999) / 1000) : 0);
    }
    return true;
}

static CUresult lock(struct card_checkpoint *mine, unsigned patience_ms) {
    uint64_t deadline_us = patience_ms > 0 ? card_now_us() + 1000ull * patience_ms : 0;
    enter_state(mine, LOCKED);
    bool in_time = nobody_inside(mine, deadline_us);
    /* From here on nothing new is given, and what was given comes to its end. */
    for (unsigned gpu = 0; in_time && gpu < card->gpus; gpu++)
        in_time = card_wait(gpu, card_given(gpu), 1000 * deadline_us);
    if (!in_time) enter_state(mine, RUNNING);
    return in_time ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

/* Moves them at the rate of each moment: a test holds a move up by a low rate, and lets it go on by 0, at once. */
static void take_time(uint64_t units, _Atomic uint64_t *rate) {
    double left = (double)(units * CARD_UNIT);
    uint64_t bytes_per_second, before = card_now_us();
    while (left > 0 && (bytes_per_second = atomic_load(rate)) > 0) {
        double seconds = left / (double)bytes_per_second;
        if (seconds > RATE_EVERY_SECONDS) seconds = RATE_EVERY_SECONDS;
        nanosleep(&(struct timespec){0, (long)(seconds * 1e9) + 1}, NULL);
        uint64_t now = card_now_us();
        left -= (double)(now - before) * 1e-6 * (double)bytes_per_second;
        before = now;
    }
}

static CUresult checkpoint(struct card_process *process) {
    static bool before;
    struct card_checkpoint *mine = &process->checkpoint;
    struct card *card = card_open();
    if (heap_has_managed() || gate_shared() > 0) return CUDA_ERROR_NOT_SUPPORTED;
    uint64_t units = 0;
    for (unsigned gpu = 0; gpu < card->gpus; gpu++) units += atomic_load(&process->held[gpu]);
    take_time(before ? units : 2 * units, &card->out_rate);
    before = true;
    for (unsigned gpu = 0; gpu < card->gpus; gpu++) atomic_store(&mine->away[gpu], card_put_away(gpu));
    enter_state(mine, CHECKPOINTED);
    return CUDA_SUCCESS;
}

/* Where each GPU of this process is to be: as the asker's pairs say, of which `from` are cards. Names all cards or
 * none.
 */
static bool find_cards(const struct card_checkpoint *mine, const struct card *card, unsigned *here) {
    for (unsigned gpu = 0; gpu < card->gpus; gpu++) {
        uint32_t to = atomic_load(&mine->pairs[card_here(gpu)]);
        here[gpu] = to == 0 ? card_here(gpu) : to - 1;
        if (here[gpu] >= card->gpus) return false;
        for (unsigned other = 0; other < gpu; other++)
            if (here[other] == here[gpu]) return false;
    }
    return true;
}

/* What it has given is done: nothing of it is on any card. */
static void go(const struct card *card, const unsigned *here) {
    for (unsigned gpu = 0; gpu < card->gpus; gpu++) {
        if (card_here(gpu) != here[gpu]) card_computes_on(gpu, card_here(gpu), here[gpu]);
        card_goes(gpu, here[gpu]);
    }
}

static CUresult restore(struct card_checkpoint *mine) {
    struct card *card = card_open();
    uint64_t units = 0;
    unsigned before[CARD_GPUS], here[CARD_GPUS];
    if (gate_tied()) return CUDA_ERROR_NOT_SUPPORTED;
    if (!find_cards(mine, card, here)) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned gpu = 0; gpu < card->gpus; gpu++) before[gpu] = card_here(gpu);
    go(card, here);
    for (unsigned gpu = 0; gpu < card->gpus; gpu++) {
        if (!card_bring_back(gpu, atomic_load(&mine->away[gpu]))) {
            while (gpu-- > 0) card_put_away(gpu);
            go(card, before);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        units += atomic_load(&mine->away[gpu]);
    }
    take_time(units, &card->in_rate);
    enter_state(mine, LOCKED);
    return CUDA_SUCCESS;
}

/* What a test has ordered for the next such step (sim_card_fault): see nvml.c. */
enum how { FAILS = 1, HANGS = 2, PROCESS_DIES = 3, ASKER_DIES = 4 };

static bool comes_to(enum step step, enum how how) {
    uint32_t fault = step | how << 8;
    return atomic_compare_exchange_strong(&card_open()->fault, &fault, 0);
}

static CUresult carry_out(struct card_process *process, uint32_t order) {
    struct card_checkpoint *mine = &process->checkpoint;
    static const enum state wanted[] = {
        [LOCK] = RUNNING, [CHECKPOINT] = LOCKED, [RESTORE] = CHECKPOINTED, [UNLOCK] = LOCKED};
    enum step step = STEP(order);
    if (atomic_load(&mine->state) != wanted[step]) return CUDA_ERROR_ILLEGAL_STATE;
    if (comes_to(step, PROCESS_DIES)) kill(getpid(), SIGKILL);
    while (comes_to(step, HANGS)) pause();
    if (comes_to(step, FAILS)) {
        if (step == CHECKPOINT || step == RESTORE) enter_state(mine, FAILED);
        return CUDA_ERROR_UNKNOWN;
    }
    switch (step) {
        case LOCK:
            return lock(mine, PATIENCE_MS(order));
        case CHECKPOINT:
            return checkpoint(process);
        case RESTORE:
            return restore(mine);
        default:
            enter_state(mine, RUNNING);
            return CUDA_SUCCESS;
    }
}

static void *serve(void *nothing) {
    struct card_process *process;
    while ((process = card_self()) != NULL) {
        struct card_checkpoint *mine = &process->checkpoint;
        uint32_t order = atomic_load(&mine->order);
        if (order == atomic_load(&mine->answered)) {
            gate_wait(&mine->order, order, 0);
            continue;
        }
        atomic_store(&mine->results[NUMBER(order)], (int16_t)carry_out(process, order));
        atomic_store(&mine->answered, order);
        gate_wake(&mine->answered);
    }
    return nothing;
}

void checkpoint_serve(void) {
    static _Atomic bool serving;
    if (atomic_exchange(&serving, true)) return;
    /* The program's signals are for its own threads. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 1 << 18);
    if (pthread_create(&thread, &attributes, serve, NULL) != 0) atomic_store(&serving, false);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

/* ---- the asker ---- */

static CUresult ask(int pid, enum step step, unsigned patience_ms) {
    REQUIRE(sim_ready());
    if (patience_ms > LONGEST_MS) patience_ms = LONGEST_MS;
    struct card_process *process = pid > 0 ? card_process_of(pid) : NULL;
    if (process == NULL) return CUDA_ERROR_INVALID_VALUE;
    struct card_checkpoint *theirs = &process->checkpoint;
    uint64_t life = atomic_load(&process->state);
    uint32_t mine = 0;
    while (atomic_load(&process->state) == life) {
        uint32_t answered = atomic_load(&theirs->answered), last = atomic_load(&theirs->order);
        /* Another may have been answered since. */
        if (mine != 0 && (uint8_t)(NUMBER(answered) - NUMBER(mine)) < 128)
            return atomic_load(&theirs->results[NUMBER(mine)]);
        if (mine == 0 && answered == last) {
            uint32_t order = ORDER((last >> 24) + 1, (uint32_t)step, patience_ms);
            if (!atomic_compare_exchange_strong(&theirs->order, &last, order)) continue;
            mine = order;
            gate_wake(&theirs->order);
            if (comes_to(step, ASKER_DIES)) kill(getpid(), SIGKILL);
        }
        gate_wait(&theirs->answered, answered, LIVES_EVERY_MS);
        if (card_process_of(pid) != process) break;
    }
    return CUDA_ERROR_INVALID_VALUE; /* it is dead */
}

struct lock_args {
    unsigned timeout_ms, reserved0;
    uint64_t reserved1[7];
};

EXPORT CUresult cuCheckpointProcessLock(int pid, const struct lock_args *args) {
    COUNTED();
    return ask(pid, LOCK, args != NULL ? args->timeout_ms : 0);
}

EXPORT CUresult cuCheckpointProcessCheckpoint(int pid, const void *args) {
    COUNTED();
    return ask(pid, CHECKPOINT, 0);
}

/* CUcheckpointRestoreArgs, as of CUDA 13: from which GPU to which, and all of them are named. */
struct gpu_pair {
    uint8_t old_uuid[16], new_uuid[16];
};
struct restore_args {
    const struct gpu_pair *pairs;
    unsigned count;
    uint8_t reserved[52];
};

static unsigned card_of(const struct card *card, const uint8_t *uuid) {
    unsigned gpu = 0;
    while (gpu < card->gpus && memcmp(card->gpu[gpu].uuid, uuid, 16) != 0) gpu++;
    return gpu;
}

/* As a real driver, it wants every card of the host named, and each as what becomes of one other. */
static bool note_pairs(struct card_checkpoint *theirs, const struct restore_args *args) {
    const struct card *card = card_open();
    unsigned count = args != NULL ? args->count : 0;
    for (unsigned gpu = 0; gpu < card->gpus; gpu++) atomic_store(&theirs->pairs[gpu], 0);
    if (count == 0) return true;
    if (count != card->gpus) return false;
    for (unsigned i = 0; i < count; i++) {
        unsigned from = card_of(card, args->pairs[i].old_uuid), to = card_of(card, args->pairs[i].new_uuid);
        if (from >= card->gpus || to >= card->gpus) return false;
        atomic_store(&theirs->pairs[from], to + 1);
    }
    return true;
}

EXPORT CUresult cuCheckpointProcessRestore(int pid, const struct restore_args *args) {
    COUNTED();
    REQUIRE(sim_ready());
    struct card_process *process = pid > 0 ? card_process_of(pid) : NULL;
    if (process == NULL || !note_pairs(&process->checkpoint, args)) return CUDA_ERROR_INVALID_VALUE;
    return ask(pid, RESTORE, 0);
}

EXPORT CUresult cuCheckpointProcessUnlock(int pid, const void *args) {
    COUNTED();
    return ask(pid, UNLOCK, 0);
}

EXPORT CUresult cuCheckpointProcessGetState(int pid, int *state) {
    COUNTED();
    REQUIRE(sim_ready());
    struct card_process *process = pid > 0 ? card_process_of(pid) : NULL;
    if (process == NULL || state == NULL) return CUDA_ERROR_INVALID_VALUE;
    *state = (int)atomic_load(&process->checkpoint.state);
    return CUDA_SUCCESS;
}
