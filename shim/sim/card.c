#include "card.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CARD_MAGIC 0x53494d33u /* "SIM3" */
#define PAGE 4096ull
/* How often an ordinary query may look for the dead: the look is one system call per living process. */
#define LOOK_EVERY_US 500
/* How long a short taker waits for others who are half-way and may yet give back: a frozen one must not hold it up. */
#define PATIENCE_US 5000

#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#endif

/* An entry's state: phase in bits 0-1, generation in bits 2-22, and for the dead the time in µs above. An entry is
 * reused with the next generation, so that nobody takes the new process for the old one. */
enum { FREE = 0, LIVE = 1, DEAD = 2 };
#define GENERATIONS (1u << 21)
#define TIME_BITS 41

static struct card *card;
static int card_fd = -1;
static uint64_t mapped; /* bytes of the card's file, when it was opened */
static bool at_home;    /* this process is in the card's own PID namespace */
static int self = -1;   /* this process's entry */
static uint32_t self_id;
static uint64_t self_state;

static _Atomic(struct card *) opened;
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t join_lock = PTHREAD_MUTEX_INITIALIZER;

static unsigned phase(uint64_t state) { return state & 3; }
static uint32_t generation(uint64_t state) { return (state >> 2) & (GENERATIONS - 1); }
static uint64_t pack(unsigned phase, uint32_t generation, uint64_t died_us) {
    return phase | (uint64_t)(generation % GENERATIONS) << 2 | died_us << (64 - TIME_BITS);
}
static uint32_t owner_id(unsigned entry, uint32_t generation) { return (entry + 1) | generation << 11; }

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static uint64_t pid_namespace(void) {
    struct stat status;
    return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

static uint64_t file_size(const struct card *of) {
    const struct card_gpu *last = &of->gpu[of->gpus - 1];
    return last->owners + last->units * sizeof(uint32_t);
}

static _Atomic uint32_t *owners(unsigned gpu) { return (_Atomic uint32_t *)((char *)card + card->gpu[gpu].owners); }

/* ---- making and opening ---- */

static void describe(struct card *new, unsigned gpus, uint64_t bytes, uint64_t free_delay_us) {
    uint64_t offset = (sizeof *new + PAGE - 1) / PAGE * PAGE;
    new->magic = CARD_MAGIC;
    new->gpus = gpus;
    new->home_namespace = pid_namespace();
    new->free_delay_us = free_delay_us;
    new->out_rate = 3ull << 29; /* 1.5 and 4.5 GiB/s: what an H100's processes of 4 GiB reached under the shim */
    new->in_rate = 9ull << 29;
    for (unsigned i = 0; i < gpus; i++) {
        struct card_gpu *gpu = &new->gpu[i];
        syscall(SYS_getrandom, gpu->uuid, sizeof gpu->uuid, 0);
        gpu->units = bytes / CARD_UNIT;
        gpu->owners = offset;
        offset += (gpu->units * sizeof(uint32_t) + PAGE - 1) / PAGE * PAGE;
    }
}

int card_create(const char *path, unsigned gpus, uint64_t bytes, uint64_t free_delay_us) {
    if (gpus < 1 || gpus > CARD_GPUS || bytes < CARD_UNIT || bytes > 1ull << 44) return EINVAL;
    static struct card new;
    memset(&new, 0, sizeof new);
    describe(&new, gpus, bytes, free_delay_us);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return errno;
    int failed = 0;
    /* Programs in containers run as any user. */
    if (fchmod(fd, 0666) != 0 || ftruncate(fd, (off_t)file_size(&new)) != 0)
        failed = errno;
    else if (pwrite(fd, &new, sizeof new, 0) != (ssize_t)sizeof new)
        failed = errno ? errno : EIO;
    close(fd);
    if (failed) unlink(path);
    return failed;
}

static void in_child(void) { self = -1; }

static void open_card(void) {
    const char *path = getenv("GPUSHARE_SIM");
    if (path == NULL) return;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    struct stat status;
    if (fstat(fd, &status) != 0 || status.st_size < (off_t)sizeof(struct card)) return;
    void *memory = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return;
    struct card *found = memory;
    if (found->magic != CARD_MAGIC || found->gpus < 1 || found->gpus > CARD_GPUS ||
        file_size(found) > (uint64_t)status.st_size)
        return;
    card_fd = fd;
    card = found;
    mapped = file_size(found);
    at_home = pid_namespace() == card->home_namespace;
    static bool told;
    if (!told) told = pthread_atfork(NULL, NULL, in_child) == 0;
}

struct card *card_open(void) {
    struct card *found = atomic_load_explicit(&opened, memory_order_acquire);
    if (found != NULL) return found;
    pthread_mutex_lock(&open_lock);
    if (card == NULL) open_card();
    atomic_store_explicit(&opened, card, memory_order_release);
    pthread_mutex_unlock(&open_lock);
    return card;
}

void card_close(void) {
    pthread_mutex_lock(&open_lock);
    if (card != NULL) {
        atomic_store(&opened, NULL);
        munmap(card, (size_t)file_size(card));
        close(card_fd);
        card = NULL;
        card_fd = -1;
    }
    pthread_mutex_unlock(&open_lock);
}

bool card_whole(void) {
    struct stat status;
    return fstat(card_fd, &status) == 0 && (uint64_t)status.st_size >= mapped && card->magic == CARD_MAGIC;
}

bool card_is_whole(const char *path) {
    static struct card head;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    struct stat status;
    bool whole = fstat(fd, &status) == 0 && pread(fd, &head, sizeof head, 0) == (ssize_t)sizeof head &&
                 head.magic == CARD_MAGIC && head.gpus >= 1 && head.gpus <= CARD_GPUS &&
                 file_size(&head) <= (uint64_t)status.st_size;
    close(fd);
    return whole;
}

void card_uuid_text(const uint8_t *uuid, char *text) {
    text += sprintf(text, "GPU-");
    for (int i = 0; i < 16; i++)
        text += sprintf(text, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
}

/* ---- who lives ---- */

/* The living owner of an entry, as the caller's PID namespace knows it: 0 if it is dead, −1 if it cannot be seen. */
static pid_t living(unsigned entry) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = entry, .l_len = 1};
    if (fcntl(card_fd, F_OFD_GETLK, &lock) != 0) return -1;
    if (lock.l_type == F_UNLCK) return 0;
    return lock.l_pid > 0 ? lock.l_pid : -1;
}

static void drop(unsigned entry, uint64_t dead) {
    uint32_t id = owner_id(entry, generation(dead));
    for (unsigned gpu = 0; gpu < card->gpus; gpu++) {
        _Atomic uint32_t *owner = owners(gpu);
        for (uint64_t unit = 0; unit < card->gpu[gpu].units; unit++) {
            uint32_t expected = id;
            if (atomic_load_explicit(&owner[unit], memory_order_relaxed) == id)
                atomic_compare_exchange_strong(&owner[unit], &expected, 0);
        }
    }
    atomic_compare_exchange_strong(&card->process[entry].state, &dead, pack(FREE, generation(dead) + 1, 0));
}

static void look_at(unsigned entry, uint64_t now) {
    struct card_process *process = &card->process[entry];
    uint64_t state = atomic_load(&process->state);
    if (phase(state) == LIVE && (int)entry != self) {
        pid_t pid = living(entry);
        if (pid > 0 && at_home && atomic_load(&process->home_pid) == 0) atomic_store(&process->home_pid, pid);
        if (pid != 0) return;
        uint64_t dead = pack(DEAD, generation(state), now);
        if (atomic_compare_exchange_strong(&process->state, &state, dead)) state = dead;
    }
    if (phase(state) != DEAD) return;
    uint64_t since = (now - (state >> (64 - TIME_BITS))) & ((1ull << TIME_BITS) - 1);
    if (since >= card->free_delay_us) drop(entry, state);
}

static void look(bool now_please) {
    uint64_t now = now_us();
    uint64_t looked = atomic_load(&card->looked_us);
    if (!now_please && now - looked < LOOK_EVERY_US) return;
    atomic_store(&card->looked_us, now);
    unsigned entries = atomic_load(&card->entries);
    for (unsigned entry = 0; entry < entries; entry++) look_at(entry, now);
}

static bool lock_entry(unsigned entry, short type) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = entry, .l_len = 1};
    return fcntl(card_fd, F_SETLK, &lock) == 0;
}

static bool claim(unsigned entry) {
    struct card_process *process = &card->process[entry];
    if (phase(atomic_load(&process->state)) != FREE || !lock_entry(entry, F_WRLCK)) return false;
    uint64_t state = atomic_load(&process->state);
    if (phase(state) != FREE) {
        lock_entry(entry, F_UNLCK);
        return false;
    }
    atomic_store(&process->home_pid, at_home ? (int32_t)getpid() : 0);
    atomic_store(&process->taking, 0);
    for (unsigned gpu = 0; gpu < CARD_GPUS; gpu++) atomic_store(&process->held[gpu], 0);
    memset((void *)&process->checkpoint, 0, sizeof process->checkpoint);
    unsigned entries = atomic_load(&card->entries);
    while (entries <= entry && !atomic_compare_exchange_weak(&card->entries, &entries, entry + 1)) {
    }
    self_id = owner_id(entry, generation(state));
    self_state = pack(LIVE, generation(state), 0);
    atomic_store(&process->state, self_state);
    self = (int)entry;
    return true;
}

bool card_join(void) {
    pthread_mutex_lock(&join_lock);
    for (int pass = 0; self < 0 && pass < 2; pass++) {
        if (pass > 0) look(true);
        for (unsigned entry = 0; self < 0 && entry < CARD_PROCESSES; entry++) claim(entry);
    }
    pthread_mutex_unlock(&join_lock);
    return self >= 0;
}

/* ---- memory ---- */

static uint64_t count_free(unsigned gpu) {
    uint64_t total = card->gpu[gpu].units, used = 0;
    unsigned entries = atomic_load(&card->entries);
    for (unsigned entry = 0; entry < entries; entry++) {
        const struct card_process *process = &card->process[entry];
        if (phase(atomic_load(&process->state)) != FREE) used += atomic_load(&process->held[gpu]);
    }
    return used < total ? total - used : 0;
}

uint64_t card_free(unsigned gpu) {
    look(false);
    return count_free(gpu);
}

/* Gives back any `units` of this process's units; how many it had. */
static uint64_t put_back_any(unsigned gpu, uint64_t units) {
    _Atomic uint32_t *owner = owners(gpu);
    uint64_t given = 0;
    for (uint64_t unit = 0; unit < card->gpu[gpu].units && given < units; unit++) {
        uint32_t mine = self_id;
        if (atomic_load_explicit(&owner[unit], memory_order_relaxed) == mine)
            given += atomic_compare_exchange_strong(&owner[unit], &mine, 0);
    }
    return given;
}

static void put_back(unsigned gpu, uint64_t units, const uint32_t *taken) {
    _Atomic uint32_t *owner = owners(gpu);
    uint64_t elsewhere = 0;
    for (uint64_t i = 0; i < units; i++) {
        uint32_t mine = self_id;
        elsewhere += !atomic_compare_exchange_strong(&owner[taken[i]], &mine, 0);
    }
    /* It was away in between, and has others now: which ones is nobody's business, only how many. */
    if (elsewhere > 0) put_back_any(gpu, elsewhere);
}

/* One pass over the table, from where the last one ended. */
static uint64_t gather(unsigned gpu, uint64_t units, uint32_t *taken) {
    static _Atomic uint32_t next[CARD_GPUS];
    _Atomic uint32_t *owner = owners(gpu);
    uint64_t total = card->gpu[gpu].units, got = 0;
    uint64_t unit = atomic_load_explicit(&next[gpu], memory_order_relaxed) % total;
    for (uint64_t seen = 0; seen < total && got < units; seen++) {
        uint32_t nobody = 0;
        if (atomic_load_explicit(&owner[unit], memory_order_relaxed) == 0 &&
            atomic_compare_exchange_strong(&owner[unit], &nobody, self_id))
            taken[got++] = (uint32_t)unit;
        if (++unit == total) unit = 0;
    }
    atomic_store_explicit(&next[gpu], (uint32_t)unit, memory_order_relaxed);
    return got;
}

static bool others_are_taking(void) {
    unsigned entries = atomic_load(&card->entries);
    for (unsigned entry = 0; entry < entries; entry++) {
        const struct card_process *process = &card->process[entry];
        if ((int)entry != self && phase(atomic_load(&process->state)) == LIVE && atomic_load(&process->taking) > 0)
            return true;
    }
    return false;
}

static bool try_take(unsigned gpu, uint64_t units, uint32_t *taken) {
    struct card_process *process = &card->process[self];
    atomic_fetch_add(&process->taking, 1);
    uint64_t got = gather(gpu, units, taken);
    if (got == units)
        atomic_fetch_add(&process->held[gpu], units);
    else
        put_back(gpu, got, taken);
    atomic_fetch_sub(&process->taking, 1);
    return got == units;
}

/* A program that closes every descriptor gives up its lock, and was taken for dead: its entry is no longer its own. */
static bool still_here(void) { return self >= 0 && atomic_load(&card->process[self].state) == self_state; }

bool card_take(unsigned gpu, uint64_t units, uint32_t *taken) {
    if (units > card->gpu[gpu].units || !still_here()) return false;
    if (try_take(gpu, units, taken)) return true;
    look(true);
    /* Two who each gathered half of what is there would both fail, although one of them fits: the one that fails
     * tries again while others are half-way. */
    uint64_t begun = now_us();
    bool contended;
    do {
        contended = others_are_taking();
        if (try_take(gpu, units, taken)) return true;
        if (contended) sched_yield();
    } while (contended && now_us() - begun < PATIENCE_US);
    return false;
}

void card_give(unsigned gpu, uint64_t units, const uint32_t *taken) {
    if (!still_here()) return;
    /* Counted down first: a look in between sees too much free for a moment, which taking then corrects. */
    atomic_fetch_sub(&card->process[self].held[gpu], units);
    put_back(gpu, units, taken);
}

uint64_t card_put_away(unsigned gpu) {
    uint64_t units = atomic_exchange(&card->process[self].held[gpu], 0);
    return put_back_any(gpu, units);
}

bool card_bring_back(unsigned gpu, uint64_t units) {
    uint32_t *taken = malloc(units * sizeof *taken);
    bool there = units == 0 || (taken != NULL && card_take(gpu, units, taken));
    free(taken);
    return there;
}

struct card_process *card_self(void) { return still_here() ? &card->process[self] : NULL; }

/* As the caller's PID namespace knows it. At home it is kept, to be shown until a dead process's memory is back. */
static pid_t pid_of(unsigned entry) {
    if (!at_home) return living(entry);
    struct card_process *process = &card->process[entry];
    pid_t pid = atomic_load(&process->home_pid);
    if (pid == 0 && (pid = living(entry)) > 0) atomic_store(&process->home_pid, pid);
    return pid;
}

struct card_process *card_process_of(pid_t pid) {
    look(true);
    unsigned entries = atomic_load(&card->entries);
    for (unsigned entry = 0; entry < entries; entry++)
        if (phase(atomic_load(&card->process[entry].state)) == LIVE && pid_of(entry) == pid)
            return &card->process[entry];
    return NULL;
}

unsigned card_holders(unsigned gpu, unsigned room, pid_t *pids, uint64_t *units) {
    look(false);
    unsigned entries = atomic_load(&card->entries), found = 0;
    for (unsigned entry = 0; entry < entries; entry++) {
        const struct card_process *process = &card->process[entry];
        uint64_t held = atomic_load(&process->held[gpu]);
        if (phase(atomic_load(&process->state)) == FREE || held == 0) continue;
        pid_t pid = pid_of(entry);
        if (pid <= 0) continue;
        if (found < room) {
            pids[found] = pid;
            units[found] = held;
        }
        found++;
    }
    return found;
}
