/* Who is inside the simulated driver. Every entry point but those that only tell a name or a version goes through here.
 */
#ifndef SIM_GATE_H
#define SIM_GATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define GATE_OPEN 0 /* the state of a process that may enter: CU_PROCESS_STATE_RUNNING */
#define GATE_AWAY 2 /* of one whose memory is in the host's: CU_PROCESS_STATE_CHECKPOINTED */

/* Waits until this process is not locked. True: this is the thread's outermost call, and it is counted as inside. */
bool gate_enter(const char *name);

/* The same of a call that only looks whether the card is done. A lock does not hold it back, and where the memory that
 * it looks at has left the card the process dies of it, as on a real card. */
bool gate_look(void);

struct gate_visit {
    bool inside;
    const char *name; /* of the entry point */
};

void gate_leave(const struct gate_visit *visit);

/* One more, or one fewer, handle of memory that several processes use; and how many there are. */
void gate_share(int more);
int gate_shared(void);

/* This process has memory that a checkpoint takes out and a restore cannot bring back; whether it has. */
void gate_tie(void);
bool gate_tied(void);

/* Waking and waiting on a word of the card, across processes: returns when `word` is no longer `value`, is woken, or
 * the time is over (0: never). */
void gate_wake(_Atomic uint32_t *word);
void gate_wait(_Atomic uint32_t *word, uint32_t value, unsigned ms);

#endif
