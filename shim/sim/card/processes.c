#include "processes.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* How often an ordinary query may look for the dead: the look is one system call per living process. */
#define LOOK_EVERY_US 500

/* For how long NVML reports what an ended process computed: CARD_SAMPLES periods of a sixth of a second. */
#define REPORTED_US (CARD_SAMPLES * 1000000ull / 6)

#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#endif

/* An entry's state: phase in bits 0-1, generation in bits 2-22, and above for the dead the time in µs when that was
 * seen, for the free the time when the entry became free. An entry is reused with the next generation, so that nobody
 * takes the new process for the old one; and, while there are others, not before NVML has forgotten the old one: it
 * reports samples of processes that have ended. */
enum { FREE = 0, LIVE = 1, DEAD = 2 };
#define GENERATIONS (1u << 21)
#define TIME_BITS 41

static int self = -1; /* this process's entry */
static uint32_t self_id;
static uint64_t self_state;
static pthread_mutex_t join_lock = PTHREAD_MUTEX_INITIALIZER;

static unsigned phase(uint64_t state) { return state & 3; }
static uint32_t generation(uint64_t state) { return (state >> 2) & (GENERATIONS - 1); }
static uint64_t pack(unsigned phase, uint32_t generation, uint64_t died_us) {
    return phase | (uint64_t)(generation % GENERATIONS) << 2 | died_us << (64 - TIME_BITS);
}
static uint32_t owner_id(unsigned entry, uint32_t generation) { return (entry + 1) | generation << 11; }

/* The living owner of an entry, as the caller's PID namespace knows it: 0 if it is dead, −1 if it cannot be seen. */
static pid_t living(unsigned entry) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = entry, .l_len = 1};
    if (fcntl(card_fd, F_OFD_GETLK, &lock) != 0) return -1;
    if (lock.l_type == F_UNLCK) return 0;
    return lock.l_pid > 0 ? lock.l_pid : -1;
}

static uint64_t age_us(uint64_t state, uint64_t now) {
    return (now - (state >> (64 - TIME_BITS))) & ((1ull << TIME_BITS) - 1);
}

static void drop(unsigned entry, uint64_t dead, uint64_t now) {
    uint32_t id = owner_id(entry, generation(dead));
    for (unsigned gpu = 0; gpu < card->gpus; gpu++) {
        _Atomic uint32_t *owner = card_owners(gpu);
        for (uint64_t unit = 0; unit < card->gpu[gpu].units; unit++) {
            uint32_t expected = id;
            if (atomic_load_explicit(&owner[unit], memory_order_relaxed) == id)
                atomic_compare_exchange_strong(&owner[unit], &expected, 0);
        }
    }
    atomic_compare_exchange_strong(&card->process[entry].state, &dead, pack(FREE, generation(dead) + 1, now));
}

static void look_at(unsigned entry, uint64_t now) {
    struct card_process *process = &card->process[entry];
    uint64_t state = atomic_load(&process->state);
    if (phase(state) == LIVE && (int)entry != self) {
        pid_t pid = living(entry);
        if (pid > 0 && card_at_home && atomic_load(&process->home_pid) == 0) atomic_store(&process->home_pid, pid);
        if (pid != 0) return;
        uint64_t dead = pack(DEAD, generation(state), now);
        if (atomic_compare_exchange_strong(&process->state, &state, dead)) state = dead;
    }
    if (phase(state) != DEAD) return;
    if (age_us(state, now) >= card->free_delay_us) drop(entry, state, now);
}

void card_look(bool at_once) {
    uint64_t now = card_now_us();
    uint64_t looked = atomic_load(&card->looked_us);
    if (!at_once && now - looked < LOOK_EVERY_US) return;
    atomic_store(&card->looked_us, now);
    unsigned entries = atomic_load(&card->entries);
    for (unsigned entry = 0; entry < entries; entry++) look_at(entry, now);
}

static bool lock_entry(unsigned entry, short type) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = entry, .l_len = 1};
    return fcntl(card_fd, F_SETLK, &lock) == 0;
}

/* `fresh`: only an entry whose last process NVML has forgotten. */
static bool claim(unsigned entry, bool fresh) {
    struct card_process *process = &card->process[entry];
    uint64_t state = atomic_load(&process->state);
    if (phase(state) != FREE || (fresh && state >> (64 - TIME_BITS) != 0 && age_us(state, card_now_us()) < REPORTED_US))
        return false;
    if (!lock_entry(entry, F_WRLCK)) return false;
    state = atomic_load(&process->state);
    if (phase(state) != FREE) {
        lock_entry(entry, F_UNLCK);
        return false;
    }
    atomic_store(&process->home_pid, card_at_home ? (int32_t)getpid() : 0);
    atomic_store(&process->taking, 0);
    for (unsigned gpu = 0; gpu < CARD_GPUS; gpu++) atomic_store(&process->held[gpu], 0);
    memset((void *)&process->checkpoint, 0, sizeof process->checkpoint);
    memset((void *)&process->computing, 0, sizeof process->computing);
    unsigned entries = atomic_load(&card->entries);
    while (entries <= entry && !atomic_compare_exchange_weak(&card->entries, &entries, entry + 1)) {
    }
    self_id = owner_id(entry, generation(state));
    self_state = pack(LIVE, generation(state), 0);
    atomic_store(&process->state, self_state);
    self = (int)entry;
    return true;
}

static void in_child(void) { self = -1; }

bool card_join(void) {
    static bool watching;
    HOLD(&join_lock);
    if (!watching) watching = pthread_atfork(NULL, NULL, in_child) == 0;
    for (int pass = 0; self < 0 && pass < 3; pass++) {
        if (pass > 0) card_look(true);
        for (unsigned entry = 0; self < 0 && entry < CARD_PROCESSES; entry++) claim(entry, pass < 2);
    }
    return self >= 0;
}

/* A program that closes every descriptor gives up its lock, and was taken for dead: its entry is no longer its own. */
struct card_process *card_self(void) {
    return self >= 0 && atomic_load(&card->process[self].state) == self_state ? &card->process[self] : NULL;
}

uint32_t card_self_id(void) { return self_id; }

/* As the caller's PID namespace knows it. At home it is kept, to be shown until a dead process's memory is back. */
pid_t card_pid(unsigned entry) {
    if (!card_at_home) return living(entry);
    struct card_process *process = &card->process[entry];
    pid_t pid = atomic_load(&process->home_pid);
    if (pid == 0 && (pid = living(entry)) > 0) atomic_store(&process->home_pid, pid);
    return pid;
}

bool card_lives(unsigned entry) { return phase(atomic_load(&card->process[entry].state)) == LIVE; }

struct card_process *card_process_of(pid_t pid) {
    card_look(true);
    unsigned entries = atomic_load(&card->entries);
    for (unsigned entry = 0; entry < entries; entry++)
        if (card_lives(entry) && card_pid(entry) == pid) return &card->process[entry];
    return NULL;
}

unsigned card_holders(unsigned gpu, unsigned room, pid_t *pids, uint64_t *units) {
    card_look(false);
    unsigned entries = atomic_load(&card->entries), found = 0;
    for (unsigned entry = 0; entry < entries; entry++) {
        const struct card_process *process = &card->process[entry];
        uint64_t held = atomic_load(&process->held[gpu]);
        if (phase(atomic_load(&process->state)) == FREE || held == 0) continue;
        pid_t pid = card_pid(entry);
        if (pid <= 0) continue;
        if (found < room) {
            pids[found] = pid;
            units[found] = held;
        }
        found++;
    }
    return found;
}

bool card_others_are_taking(void) {
    unsigned entries = atomic_load(&card->entries);
    for (unsigned entry = 0; entry < entries; entry++) {
        const struct card_process *process = &card->process[entry];
        if ((int)entry != self && phase(atomic_load(&process->state)) == LIVE && atomic_load(&process->taking) > 0)
            return true;
    }
    return false;
}

uint64_t card_free(unsigned gpu) {
    card_look(false);
    uint64_t total = card->gpu[gpu].units, used = 0;
    unsigned entries = atomic_load(&card->entries);
    for (unsigned entry = 0; entry < entries; entry++) {
        const struct card_process *process = &card->process[entry];
        if (phase(atomic_load(&process->state)) != FREE) used += atomic_load(&process->held[gpu]);
    }
    return used < total ? total - used : 0;
}

/* 0: never moved; else the card's number and 1. Asked in every call, and changed while nothing is in the driver. */
static _Atomic unsigned moved[CARD_GPUS];

unsigned card_here(unsigned gpu) {
    unsigned to = atomic_load_explicit(&moved[gpu], memory_order_relaxed);
    return to == 0 ? gpu : to - 1;
}

void card_goes(unsigned gpu, unsigned to) { atomic_store(&moved[gpu], to + 1); }
