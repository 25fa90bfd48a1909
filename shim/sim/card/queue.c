/* What a process gives its GPUs, kernel after kernel.
 *
 * A kernel that takes part in an operation of several ranks is a barrier: nothing behind it is done before all have
 * given theirs. So a process counts places on a scale of its own, which is the clock's less what it has stood before
 * barriers. While it stands before one it is published as one that has work for ever; what follows is known when all
 * have come, and then a thread of the driver's says so, be the program asleep. */
#include "channels.h"
#include "computing.h"
#include "processes.h"

#include <signal.h>
#include <stdlib.h>

#define AHEAD 1024                   /* kernels that a process may have given and not got done */
#define LONGEST_NS 86400000000000ull /* one of them, a day: so that no sum of them overflows */
#define FOR_EVER (UINT64_MAX / 2)
#define LOOK_MS (CARD_LOOK_NS / 1000000)

struct barrier {
    struct barrier *next;
    uint64_t place, number; /* its kernel's beginning; which operation of its channel it is */
    unsigned channel, rank;
    bool left;
};

static struct queue {
    pthread_mutex_t lock;
    pthread_cond_t more;
    bool watched;
    uint64_t done[AHEAD]; /* the places of the kernels given last */
    unsigned next;
    uint64_t end;     /* the place where all is done */
    uint64_t stalled; /* ps */
    struct barrier *first, **last;
} queue[CARD_GPUS] = {[0 ... CARD_GPUS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER}};

/* Where this process is on its scale at a reading of the clock. The lock is held. */
static uint64_t place(unsigned gpu, uint64_t reading) {
    struct queue *mine = &queue[gpu];
    bool passed = false;
    for (struct barrier *barrier; (barrier = mine->first) != NULL; free(barrier), passed = true) {
        if (!barrier->left && card_channel_least(barrier->channel) < barrier->number) break;
        uint64_t reached = barrier->place + mine->stalled;
        if (reading > reached) mine->stalled += reading - reached;
        mine->first = barrier->next;
    }
    struct card_process *process = card_self();
    if (passed && mine->first == NULL && process != NULL)
        atomic_store(&process->computing[card_here(gpu)].end, mine->end + mine->stalled);
    uint64_t here = reading - mine->stalled;
    return mine->first != NULL ? card_least(here, mine->first->place) : here;
}

/* Waits until there is room in the queue; where the process is then. The lock is held. */
static uint64_t make_room(unsigned gpu) {
    struct queue *mine = &queue[gpu];
    for (uint64_t here, first;;) {
        here = place(gpu, card_clock(card_here(gpu)).ps);
        if ((first = mine->done[mine->next]) <= here) return here;
        pthread_mutex_unlock(&mine->lock);
        card_wait(gpu, first, 0);
        pthread_mutex_lock(&mine->lock);
    }
}

/* The lock is held. */
static uint64_t append(unsigned gpu, struct card_process *process, uint64_t ns, struct barrier *barrier) {
    struct queue *mine = &queue[gpu];
    uint64_t here = make_room(gpu);
    if (mine->end < here) {
        atomic_fetch_add(&process->computing[card_here(gpu)].rested, here - mine->end);
        mine->end = here;
    }
    if (barrier != NULL) {
        barrier->place = mine->end;
        if (mine->first == NULL) mine->last = &mine->first;
        *mine->last = barrier;
        mine->last = &barrier->next;
    }
    mine->end += card_least(ns, LONGEST_NS) * 1000;
    atomic_store(&process->computing[card_here(gpu)].end, mine->first != NULL ? FOR_EVER : mine->end + mine->stalled);
    mine->done[mine->next] = mine->end;
    mine->next = (mine->next + 1) % AHEAD;
    return mine->end;
}

uint64_t card_compute(unsigned gpu, uint64_t ns) {
    struct card_process *process = card_self();
    if (process == NULL || ns == 0) return card_given(gpu);
    HOLD(&queue[gpu].lock);
    return append(gpu, process, ns, NULL);
}

uint64_t card_given(unsigned gpu) {
    HOLD(&queue[gpu].lock);
    uint64_t end = queue[gpu].end;
    return card_self() != NULL ? end : 0;
}

bool card_reached(unsigned gpu, uint64_t end) {
    if (end == 0) return true;
    HOLD(&queue[gpu].lock);
    return end <= place(gpu, card_clock(card_here(gpu)).ps);
}

static void sleep_until(uint64_t ns) {
    struct timespec wake = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, NULL);
}

bool card_wait(unsigned gpu, uint64_t end, uint64_t deadline_ns) {
    while (end > 0 && card_self() != NULL) {
        union card_moment now = card_clock(card_here(gpu)), then = now;
        pthread_mutex_lock(&queue[gpu].lock);
        uint64_t here = place(gpu, now.ps), until = end + queue[gpu].stalled;
        const struct barrier *barrier = queue[gpu].first;
        bool stands = barrier != NULL && here == barrier->place;
        unsigned channel = barrier != NULL ? barrier->channel : 0;
        uint32_t bell = barrier != NULL ? card_channel_bell(channel) : 0;
        if (barrier != NULL) until = card_least(until, barrier->place + queue[gpu].stalled);
        bool met = place(gpu, now.ps) > here; /* who came since the bell was read */
        pthread_mutex_unlock(&queue[gpu].lock);
        if (end <= here) break;
        if (deadline_ns > 0 && now.ns >= deadline_ns) return false;
        if (met) continue;
        uint64_t longest = deadline_ns > 0 ? card_least(deadline_ns - now.ns, CARD_LOOK_NS) : CARD_LOOK_NS;
        if (stands) {
            card_channel_wait(channel, bell, (unsigned)(longest / 1000000 + 1));
            continue;
        }
        /* Others may give more, and then it takes longer, but never less, unless one of them dies. */
        card_walk(card_here(gpu), &then, now.ns + longest, until);
        sleep_until(then.ns);
    }
    return true;
}

void card_computes_on(unsigned gpu, unsigned from, unsigned to) {
    struct queue *mine = &queue[gpu];
    struct card_process *process = card_self();
    HOLD(&mine->lock);
    /* It is on its own scale where it was: the clocks of two cards differ by what others have computed. */
    mine->stalled += card_clock(to).ps - card_clock(from).ps;
    if (process != NULL && mine->end > 0) {
        struct card_computing *there = &process->computing[to];
        uint64_t end = mine->end + mine->stalled;
        atomic_fetch_add(&there->rested, end - atomic_load(&there->end));
        atomic_store(&there->end, end);
    }
}

void card_settle(unsigned gpu) { card_wait(gpu, card_given(gpu), 0); }

/* ---- barriers ---- */

/* Says when all have come. */
static void *watch(void *number) {
    unsigned gpu = (unsigned)(uintptr_t)number;
    struct queue *mine = &queue[gpu];
    pthread_mutex_lock(&mine->lock);
    while (card_self() != NULL) {
        if (mine->first == NULL) {
            pthread_cond_wait(&mine->more, &mine->lock);
            continue;
        }
        unsigned channel = mine->first->channel;
        uint32_t bell = card_channel_bell(channel);
        const struct barrier *before = mine->first;
        place(gpu, card_clock(card_here(gpu)).ps);
        if (mine->first != before) continue;
        pthread_mutex_unlock(&mine->lock);
        card_channel_wait(channel, bell, LOOK_MS);
        pthread_mutex_lock(&mine->lock);
    }
    mine->watched = false;
    pthread_mutex_unlock(&mine->lock);
    return NULL;
}

static void be_watched(unsigned gpu) {
    if (queue[gpu].watched) {
        pthread_cond_signal(&queue[gpu].more);
        return;
    }
    sigset_t all, old; /* the program's signals are for its own threads */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_t thread;
    queue[gpu].watched = pthread_create(&thread, NULL, watch, (void *)(uintptr_t)gpu) == 0;
    if (queue[gpu].watched) pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

uint64_t card_meet(unsigned gpu, unsigned channel, unsigned rank, uint64_t ns) {
    struct card_process *process = card_self();
    struct barrier *barrier = process != NULL ? calloc(1, sizeof *barrier) : NULL;
    if (barrier == NULL) return card_given(gpu);
    HOLD(&queue[gpu].lock);
    make_room(gpu);
    barrier->channel = channel;
    barrier->rank = rank;
    barrier->number = card_channel_word(channel, rank) + 1;
    uint64_t end = append(gpu, process, ns, barrier);
    card_channel_write(channel, rank, barrier->number);
    be_watched(gpu);
    return end;
}

void card_leave(unsigned channel, unsigned rank) {
    for (unsigned gpu = 0; gpu < CARD_GPUS; gpu++) {
        pthread_mutex_lock(&queue[gpu].lock);
        for (struct barrier *barrier = queue[gpu].first; barrier != NULL; barrier = barrier->next)
            barrier->left |= barrier->channel == channel && barrier->rank == rank;
        pthread_mutex_unlock(&queue[gpu].lock);
    }
    card_channel_ring(channel);
}
