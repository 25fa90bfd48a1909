/* The gate: the part of a lease page by which programs on several cards are stopped together.
 *
 * A collective of NCCL occupies its card until all ranks have given theirs. So a rank that is locked before it has
 * given its part keeps its siblings' cards busy for ever, and they cannot be locked. Therefore a process counts what it
 * begins, and while the scheduler asks, it begins nothing beyond the numbers that the scheduler names. Once all ranks
 * have given the same, all can be locked.
 *
 * Counted are the operations on a *channel*: a set of ranks that wait for each other on their cards.
 *
 *   collective  all ranks of a communicator
 *   pair        the sends of one rank to another, and the receives there: in a pipeline the ranks' sums differ, but not
 *               those of a pair
 *
 * An *entry* is one rank's end of a channel. Every word has one writer:
 *
 *   begun    the process: operations begun, counted before NCCL is called
 *   given    the process: of those, handed to the card. Never above `begun`
 *   wanted   the process: the furthest number that a thread was held back from; held means wanted > begun. Nobody
 *            clears it, `begun` overtakes it
 *   limit    the scheduler: how far `begun` may go while it asks, in the low 48 bits, and above them the entry's
 * serial. A limit with another serial is 0: it was for the channel that the entry stood for before asked    the
 * scheduler: 0: the gate is open. Anything else: it is shut at the limits. It is also the word that held threads sleep
 * on, and the sign that the scheduler lives: it changes whenever a limit was raised, and at least each GATE_BEAT_NS.
 * `last` is what it was last, for the next to be another silent   the process: the value of `asked` that stood still
 * for GATE_SILENCE_NS. It holds nobody any more
 *
 * To begin, a process adds to `begun`, then looks at `asked` (`gate_try`); the scheduler changes `asked`, then looks at
 * `begun`. All four are sequentially consistent, so at least one side sees the other. If it is the process, it takes
 * back what it added, and waits; so `begun` may be too high for an instant, never for longer. If it is the scheduler,
 * that operation is one of those which everybody has to come to.
 *
 * So when `given`, `begun` and the limit are equal in all entries of all ranks, they stay so until a limit is raised or
 * the gate is opened: that is when all can be locked. No help from a process is needed, which may be frozen between any
 * two instructions.
 *
 * Several operations that NCCL launches as one (a group, a CUDA graph) pass together: when each of their channels has
 * room for all of its own.
 *
 * Identity (`communicator`, `ranks`, `rank`, `peer`, `kind`) is written while `serial` is odd. It is published before
 * NCCL makes the communicator, so no rank can have begun anything before all ranks on this host are to be seen.
 *
 * The program can write to all of this. What it writes costs the scheduler the time that it gives a stop, no more.
 * tests/shim/test_gate_model.py has every interleaving of these steps.
 */
#ifndef GPUSHARE_GATE_H
#define GPUSHARE_GATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GATE_ENTRIES 512
#define GATE_BEAT_NS 250000000
#define GATE_SILENCE_NS 1000000000
#define GATE_SERIAL_SHIFT 48

enum gate_kind {
    GATE_COLLECTIVE = 1,
    GATE_SEND = 2,      /* from `rank` to `peer` */
    GATE_RECEIVE = 3,   /* from `peer` to `rank` */
    GATE_LEFT = 0x8000, /* beside one of those: this rank has left the communicator and begins nothing more */
};

/* What this process does and the gate does not see (`unseen`). */
enum gate_unseen {
    GATE_UNSEEN_FULL = 1,      /* all entries are in use */
    GATE_UNSEEN_SECOND = 2,    /* a second NCCL in this process, whose calls are not intercepted */
    GATE_UNSEEN_DEVICE = 4,    /* NCCL's own ways for kernels and for one side alone */
    GATE_UNSEEN_GRAPH = 8,     /* a CUDA graph whose collectives cannot be counted */
    GATE_UNSEEN_IDENTITY = 16, /* a communicator whose making was not seen, or that has grown */
    GATE_UNSEEN_STATIC = 32,   /* NCCL's kernels without its calls: it is linked statically */
    GATE_UNSEEN_NVSHMEM = 64,
};

struct gate_entry {
    _Atomic uint64_t communicator;         /* process: 0: never used */
    _Atomic uint32_t ranks, rank, peer;    /* process: ranks 0: not known yet */
    _Atomic uint16_t kind, serial;         /* process */
    _Atomic uint64_t begun, given, wanted; /* process */
    _Atomic uint64_t limit;                /* scheduler */
    uint8_t padding[8];                    /* an entry is a cache line */
};

struct gate {
    _Atomic uint32_t asked;  /* scheduler */
    _Atomic uint32_t last;   /* scheduler */
    _Atomic uint32_t silent; /* process */
    _Atomic uint32_t unseen; /* process: enum gate_unseen, for good */
    _Atomic uint32_t used;   /* process: entries that were ever used */
    _Atomic uint32_t passed; /* process: how often a thread went on by itself as the scheduler was silent */
    uint8_t padding[40];
    struct gate_entry entry[GATE_ENTRIES];
};

/* Operations of one channel that are begun together. `target`: what `begun` is once they are. */
struct gate_step {
    uint16_t entry, serial;
    uint32_t count;
    uint64_t target;
};

/* ---- the process's side ---- */

/* Takes an entry; −1 if there is none. One thread at a time. */
int gate_open(struct gate *gate, uint64_t communicator, uint16_t kind, uint32_t ranks, uint32_t rank, uint32_t peer);

/* What only is known once NCCL has made the communicator. */
void gate_describe(struct gate *gate, int entry, uint32_t ranks, uint32_t rank);

/* The rank has left the communicator: whoever is held at this entry is let go. */
void gate_leave(struct gate *gate, int entry);

/* Begins all of the steps, or none: then they are wanted. */
bool gate_try(struct gate *gate, struct gate_step *steps, size_t count);

/* Begins all of the steps, waiting for as long as the scheduler asks and lives. False: a rank has left meanwhile, and
 * nothing is begun. */
bool gate_pass(struct gate *gate, struct gate_step *steps, size_t count);

/* NCCL has returned: they are given, or, where it failed, not begun. */
void gate_end(struct gate *gate, const struct gate_step *steps, size_t count, bool given);

void gate_unsee(struct gate *gate, enum gate_unseen what);

/* ---- the scheduler's side: of one thread ---- */

/* Shuts the gate, or says that it still is; wakes who is held, to look at the limits. */
void gate_ask(struct gate *gate);

/* Opens it. */
void gate_let_go(struct gate *gate);

/* How far an entry may go, if it is still the one with this serial. */
void gate_limit(struct gate *gate, unsigned entry, uint16_t serial, uint64_t number);

/* An entry as it is now. */
struct gate_look {
    uint64_t communicator;
    uint32_t ranks, rank, peer;
    uint16_t kind, serial;
    uint64_t begun, given, wanted, limit;
};

/* False: it is not in use, or about to be described. */
bool gate_look(const struct gate *gate, unsigned entry, struct gate_look *look);

#endif
