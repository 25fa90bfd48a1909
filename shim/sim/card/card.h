/* The simulated card: one file, mapped by every process of the host that loads the simulated driver or NVML.
 *
 * The GPU's memory is a table of 2 MiB units, one word each: 0, or the id of the process that owns it. Taking memory
 * is a compare-and-swap for each unit, so a card cannot be overcommitted, and there is no lock: a process that is
 * killed or frozen at any instruction holds up nobody. What a dead process held is found by its id and dropped whole.
 *
 * A process is one entry of the process table. It is alive as long as it holds a POSIX record lock on its entry's
 * byte of the file; the kernel drops that lock when the process ends or execs, and fork does not pass it on. Asking for
 * the lock also translates the process's id into the asker's PID namespace, which a number in shared memory could not.
 * Lookers ask with F_OFD_GETLK because that sees the asker's own process too. Nobody may close a file descriptor of
 * the card: that would drop its process's lock.
 *
 * A real card frees memory a little after a process's death. So here: who first sees that a process is dead notes the
 * time, and whoever looks after `free_delay_us` drops what it held.
 *
 * Copied into both libraries; none of it is exported. Sizes are in units unless named bytes. */
#ifndef SIM_CARD_H
#define SIM_CARD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#define CARD_UNIT (2ull << 20)
#define CARD_GPUS 16
#define CARD_PROCESSES 1024
#define CARD_NAME "Simulated GPU"
#define CARD_UUID_TEXT 41 /* "GPU-" and 36 characters, and the end */

/* The lock is held from here to the end of the scope. */
static inline pthread_mutex_t *sim_locked(pthread_mutex_t *lock) { return pthread_mutex_lock(lock), lock; }
static inline void sim_unlock(pthread_mutex_t **lock) { pthread_mutex_unlock(*lock); }
#define HOLD(lock) __attribute__((cleanup(sim_unlock), unused)) pthread_mutex_t *sim_held = sim_locked(lock)

/* A reading of a GPU's clock, and when it was so: computing.c. */
union card_moment {
    struct {
        uint64_t ns, ps;
    };
    unsigned __int128 both;
};

/* How much it was at the end of a period. */
struct card_sample {
    _Atomic uint64_t period, had;
};
#define CARD_SAMPLES 32

struct card_gpu {
    uint8_t uuid[16];
    uint64_t units;
    uint64_t owners; /* offset in the file of this GPU's unit table */
    union card_moment clock;
    _Atomic uint64_t busy_ns; /* in which somebody computed */
    struct card_sample sample[CARD_SAMPLES];
    _Atomic uint32_t warmer;       /* than a card that nothing is wrong with, degrees */
    _Atomic uint32_t ecc_errors;   /* uncorrected ones */
    _Atomic uint32_t remap_failed; /* a row of its memory could not be remapped */
    _Atomic uint32_t xids, xid;    /* how many critical errors it has reported, and the last one's number */
};

/* What a process computes on a GPU: when the clock reads `end`, all is done. While it had nothing to do, the clock went
 * on by `rested`. Whose kernel waits for other processes' has an end that never comes. */
struct card_computing {
    _Atomic uint64_t end, rested;
    struct card_sample sample[CARD_SAMPLES];
};

/* What a process's checkpointing is about; checkpoint.c, which alone knows what the words mean. All zero: running. */
struct card_checkpoint {
    _Atomic uint32_t state;           /* enum state */
    _Atomic uint32_t inside;          /* threads that are in the driver */
    _Atomic uint32_t order, answered; /* equal: nothing is to be done */
    _Atomic int16_t results[256];     /* of the last orders, by their numbers: an asker may be slow to look */
    _Atomic uint64_t away[CARD_GPUS]; /* units that are in host memory */
    _Atomic uint32_t
        pairs[CARD_GPUS]; /* of a restore: card → the number and 1 of that which takes its place; 0: its own */
};

struct card_process {
    _Atomic uint64_t state; /* phase, generation and time of death; see processes.c */
    _Atomic int32_t
        home_pid;            /* its id in the PID namespace that the card was made in; 0: nobody there has looked yet */
    _Atomic uint32_t taking; /* threads half-way through card_take */
    _Atomic uint64_t held[CARD_GPUS]; /* display only: the unit table decides */
    struct card_checkpoint checkpoint;
    struct card_computing computing[CARD_GPUS];
};

#define CARD_CHANNELS 2048
#define CARD_RANKS 64

/* Ranks that take part in the same operations: channels.h. */
struct card_channel {
    _Atomic uint64_t key; /* 0: free */
    _Atomic uint32_t joined, left, bell;
    uint32_t ranks;
    _Atomic uint64_t word[CARD_RANKS]; /* each written by one of them */
};

struct card {
    uint32_t magic;
    uint32_t gpus;
    uint64_t home_namespace; /* inode of the PID namespace that the card was made in: the host's */
    uint64_t free_delay_us;
    _Atomic uint64_t out_rate,
        in_rate;                /* of checkpoints, bytes a second; a process's first one out takes twice as long */
    _Atomic uint32_t fault;     /* what the next step of a checkpoint comes to, for tests; checkpoint.c */
    _Atomic uint64_t looked_us; /* when the dead were last looked for */
    _Atomic uint32_t entries;   /* entries below this have been used */
    struct card_gpu gpu[CARD_GPUS];
    struct card_process process[CARD_PROCESSES];
    struct card_channel channel[CARD_CHANNELS];
};

/* Makes a new card file with `gpus` GPUs of `bytes` each. 0, or an errno. */
int card_create(const char *path, unsigned gpus, uint64_t bytes, uint64_t free_delay_us);

/* The card that $GPUSHARE_SIM names; NULL if there is none. It stays open until `card_close`. */
struct card *card_open(void);
/* The same, and it is not closed until `card_release`: for who asks beside the thread that reads NVML. */
struct card *card_hold(void);
void card_release(void);

/* For a process that only looks: nothing of the card may be in use any more, and none of it is its own. */
void card_close(void);

/* Whether all of the card's file is there: any program on it can cut it off, and a touch of what is gone ends who does.
 */
bool card_whole(void);
bool card_is_whole(const char *path); /* the same of one that is not open */

void card_uuid_text(const uint8_t *uuid, char *text);

/* The card that this process has open (NULL: none), and its file. */
extern struct card *card;
extern int card_fd;
extern bool card_at_home; /* this process is in the card's own PID namespace */

/* The unit table of a GPU. */
_Atomic uint32_t *card_owners(unsigned gpu);

static inline uint64_t card_now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

#endif
