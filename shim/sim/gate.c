/* The door of the simulated driver: who enters, and that nobody does while the process is locked (checkpoint.c). */
#include "gate.h"

#include "card/processes.h"

#include <linux/futex.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static _Thread_local unsigned depth;
static _Atomic int shared;
static _Atomic bool tied;

void gate_wake(_Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0); }

void gate_wait(_Atomic uint32_t *word, uint32_t value, unsigned ms) {
    struct timespec at_most = {ms / 1000, (long)(ms % 1000) * 1000000};
    syscall(SYS_futex, word, FUTEX_WAIT, value, ms > 0 ? &at_most : NULL, NULL, 0);
}

/* ---- for tests: what another thread may do before or after a call ---- */

struct moment {
    const char *_Atomic name;
    void (*_Atomic callback)(void);
};
static struct moment before, after;

static void set(struct moment *moment, const char *name, void (*callback)(void)) {
    atomic_store(&moment->callback, callback);
    atomic_store(&moment->name, name);
}

static void reach(struct moment *moment, const char *name) {
    const char *awaited = atomic_load(&moment->name);
    if (awaited == NULL || strcmp(awaited, name) != 0) return;
    if (atomic_exchange(&moment->name, NULL) != NULL) atomic_load (&moment->callback)();
}

__attribute__((visibility("default"))) void sim_before(const char *name, void (*callback)(void));
__attribute__((visibility("default"))) void sim_after(const char *name, void (*callback)(void));

/* Calls `callback` once, when this entry point has been called and has done nothing yet. */
void sim_before(const char *name, void (*callback)(void)) { set(&before, name, callback); }

/* Calls `callback` once, when a call of this entry point has had its effect and is about to return. */
void sim_after(const char *name, void (*callback)(void)) { set(&after, name, callback); }

/* ---- the door ---- */

bool gate_enter(const char *name) {
    if (depth == 0) reach(&before, name);
    struct card_process *process = card_self();
    if (depth++ > 0 || process == NULL) return false;
    struct card_checkpoint *mine = &process->checkpoint;
    for (;;) {
        atomic_fetch_add(&mine->inside, 1);
        uint32_t state = atomic_load(&mine->state);
        if (state == GATE_OPEN) return true;
        if (atomic_fetch_sub(&mine->inside, 1) == 1) gate_wake(&mine->inside);
        gate_wait(&mine->state, state, 0);
    }
}

bool gate_look(void) {
    struct card_process *process = card_self();
    if (depth++ > 0 || process == NULL) return false;
    struct card_checkpoint *mine = &process->checkpoint;
    atomic_fetch_add(&mine->inside, 1);
    uint32_t state = atomic_load(&mine->state);
    if (state == GATE_OPEN) return true;
    if (atomic_fetch_sub(&mine->inside, 1) == 1) gate_wake(&mine->inside);
    if (state == GATE_AWAY) raise(SIGSEGV);
    return false;
}

static void leave(void) {
    struct card_process *process = card_self();
    if (process == NULL) return;
    struct card_checkpoint *mine = &process->checkpoint;
    if (atomic_fetch_sub(&mine->inside, 1) == 1 && atomic_load(&mine->state) != GATE_OPEN) gate_wake(&mine->inside);
}

void gate_leave(const struct gate_visit *visit) {
    depth--;
    if (visit->inside) leave();
    if (depth == 0) reach(&after, visit->name);
}

void gate_share(int more) { atomic_fetch_add(&shared, more); }

int gate_shared(void) { return atomic_load(&shared); }

void gate_tie(void) { atomic_store(&tied, true); }

bool gate_tied(void) { return atomic_load(&tied); }
