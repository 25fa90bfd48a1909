/* The guardian: lets everybody go on who was stopped for a turn, once whoever stopped them is gone, however that came.
 *
 * Usage: guardian FD. Run by scheduler/card/guardian.py.
 * In:    "+PID\n": this process is about to be locked. "=PID\n": it is. "-PID\n": it is unlocked again.
 *        "+0\n" is nobody: whoever says that wants to hear that the guardian does not stand still.
 * Out:   "ready\n", or "cannot WHY\n" and the end; then "." for each "+", once it is noted.
 *
 * At the end of its input it unlocks all that it knows, and ends. No signal but SIGKILL ends it. While FD is open the
 * next scheduler locks nobody (scheduler/card/generation.py), so that nobody is unlocked whom that one has locked.
 *
 * Nothing but libc, and the driver: a program that is really static could not load that. It makes no context, so it
 * takes nothing of a card. */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PIDS (1 << 22) /* the kernel's largest pid_max */
#define LONGEST_LOCK 7 /* seconds in which a lock that was asked for is done or given up: LOCK_WITHIN, and more */
#define AGAIN_NS 3000000

enum { SUCCESS = 0, ILLEGAL_STATE = 401 }; /* CUresult */
enum { RUNNING = 0, LOCKED = 1 };          /* CUprocessState */

static int (*init)(unsigned);
static int (*unlock)(int pid, void *args);
static int (*get_state)(int pid, int *state);

static unsigned char known[PIDS / 8], locked[PIDS / 8];
static int generation = -1;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static unsigned at_work;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void note(char sign, int pid) {
    unsigned char bit = (unsigned char)(1 << pid % 8);
    if (pid >= PIDS) return;
    if (sign == '=') {
        locked[pid / 8] |= bit;
        return;
    }
    locked[pid / 8] &= (unsigned char)~bit;
    if (sign == '+') known[pid / 8] |= bit;
    if (sign == '-') known[pid / 8] &= (unsigned char)~bit;
}

static bool is_in(const unsigned char *set, int pid) { return set[pid / 8] >> pid % 8 & 1; }

static void say(const char *text, size_t length) {
    while (length > 0) {
        ssize_t written = write(STDOUT_FILENO, text, length);
        if (written <= 0) return; /* nobody hears it: the input ends as well */
        text += written;
        length -= (size_t)written;
    }
}

static const char *begin(void) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (cuda == NULL) return dlerror();
    *(void **)&init = dlsym(cuda, "cuInit");
    *(void **)&unlock = dlsym(cuda, "cuCheckpointProcessUnlock");
    *(void **)&get_state = dlsym(cuda, "cuCheckpointProcessGetState");
    if (init == NULL || unlock == NULL || get_state == NULL) return "the driver is older than CUDA 12.8";
    if (init(0) != SUCCESS) return "cuInit failed";
    return NULL;
}

/* A lock may have been asked for a moment ago and be done only now, so one that runs is looked at for a while: but for
 * one that was locked, which somebody else has let go on. Looking asks nothing of the process itself. */
static void *let_go(void *pid_as_pointer) {
    int pid = (int)(long)pid_as_pointer, state;
    double begun = now();
    bool done = unlock(pid, NULL) != ILLEGAL_STATE || is_in(locked, pid);
    while (!done && now() - begun < LONGEST_LOCK && get_state(pid, &state) == SUCCESS) {
        if (state == LOCKED)
            done = unlock(pid, NULL) != ILLEGAL_STATE;
        else if (state == RUNNING)
            nanosleep(&(struct timespec){0, AGAIN_NS}, NULL);
        else
            break;
    }
    pthread_mutex_lock(&mutex);
    at_work--;
    pthread_cond_signal(&ended);
    pthread_mutex_unlock(&mutex);
    return NULL;
}

/* Each in a thread of its own: an unlock of a frozen process waits until that goes on, and the next scheduler does not
 * wait for it. */
static void let_all_go(void) {
    double begun = now();
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 1 << 20);
    for (int pid = 1; pid < PIDS; pid++) {
        if (known[pid / 8] == 0)
            pid |= 7;
        else if (is_in(known, pid)) {
            pthread_t thread;
            pthread_mutex_lock(&mutex);
            at_work++;
            pthread_mutex_unlock(&mutex);
            if (pthread_create(&thread, &attributes, let_go, (void *)(long)pid) != 0) let_go((void *)(long)pid);
        }
    }
    pthread_mutex_lock(&mutex);
    while (at_work > 0) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 1;
        pthread_cond_timedwait(&ended, &mutex, &until);
        if (now() - begun > LONGEST_LOCK + 1 && generation >= 0) {
            close(generation);
            generation = -1;
        }
    }
    pthread_mutex_unlock(&mutex);
}

/* Notes what the lines say, whole or in parts, as they come. */
static void listen(void) {
    char read_now[4096], noted[sizeof read_now], sign = 0;
    long pid = 0;
    ssize_t size;
    while ((size = read(STDIN_FILENO, read_now, sizeof read_now)) > 0) {
        size_t lines = 0;
        for (ssize_t i = 0; i < size; i++) {
            char letter = read_now[i];
            if (letter == '+' || letter == '=' || letter == '-') {
                sign = letter;
                pid = 0;
            } else if (letter >= '0' && letter <= '9' && pid < PIDS) {
                pid = 10 * pid + (letter - '0');
            } else if (letter == '\n') {
                note(sign, (int)pid);
                if (sign == '+') noted[lines++] = '.';
                sign = 0;
            }
        }
        say(noted, lines);
    }
}

/* Where the kernel is short of memory it is the last to go. Only root may ask for that. */
static void outlive(void) {
    for (int number = 1; number < NSIG; number++) signal(number, SIG_IGN);
    int file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (file < 0) return;
    if (write(file, "-1000", 5) < 0) (void)0;
    close(file);
}

int main(int count, char **words) {
    outlive();
    if (count == 2) generation = atoi(words[1]);
    const char *why_not = begin();
    if (why_not != NULL) {
        char line[512];
        int length = snprintf(line, sizeof line, "cannot %s\n", why_not);
        say(line, length < (int)sizeof line ? (size_t)length : sizeof line - 1);
        return 1;
    }
    say("ready\n", 6);
    listen();
    let_all_go();
    return 0;
}
