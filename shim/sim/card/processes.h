/* The process table of the card: who is on it, who of them lives, and how much each holds. */
#ifndef SIM_CARD_PROCESSES_H
#define SIM_CARD_PROCESSES_H

#include "card.h"

/* Gives this process an entry. False: the table is full. */
bool card_join(void);

/* This process's entry, NULL before card_join; and another's, by its id in the caller's PID namespace. */
struct card_process *card_self(void);
struct card_process *card_process_of(pid_t pid);

/* Whether an entry is a living process's, as far as has been seen; and its id in the caller's PID namespace, 0 or
 * less where it has none. */
bool card_lives(unsigned entry);
pid_t card_pid(unsigned entry);

/* What this process's units have as their owner. */
uint32_t card_self_id(void);

/* Somebody else is half-way through card_take. */
bool card_others_are_taking(void);

/* Looks who has died, and drops what those held who did so long ago. `at_once`: even if somebody has just looked. */
void card_look(bool at_once);

/* Free units, after those of processes long dead have been dropped. */
uint64_t card_free(unsigned gpu);

/* Who holds memory of a GPU: ids in the caller's PID namespace (those it cannot see are left out), and units. */
unsigned card_holders(unsigned gpu, unsigned room, pid_t *pids, uint64_t *units);

/* The card that a GPU of this process is on: its own, until its memory was restored on another. */
unsigned card_here(unsigned gpu);
/* From now on another; nothing of the process is on either. */
void card_goes(unsigned gpu, unsigned to);

#endif
