#define _GNU_SOURCE
#include "client.h"

#include "dial.h"
#include "fork.h"
#include "lock.h"
#include "options.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <unistd.h>

#define WAITING (-2)
#define FIRST_PAUSE_MS 5
#define LONGEST_PAUSE_MS 500

struct waiter {
    struct waiter *next;
    struct wire_frame need;
    bool sent; /* on the present connection */
    int answer;
};

_Atomic(struct lease_page *) client_page_now;

static struct {
    struct lock lock; /* holds the rest together */
    int fd;           /* the connection, if `connected` */
    bool connected;
    bool reading; /* a thread is at the socket, or connecting, outside the lock: it alone may change `fd` */
    int page_fd;
    ino_t page_file; /* 0: no page yet */
    uint32_t serial;
    struct waiter *waiters;
    _Atomic uint32_t turn; /* moves on when a waiter may have something to do */
} session;

/* What every function of the header does around its work. */
struct manners {
    int errno_before, cancel_before;
};

static struct manners begin(void) {
    struct manners manners = {.errno_before = errno};
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &manners.cancel_before);
    lock_take(&session.lock);
    return manners;
}

static void end(struct manners manners) {
    lock_drop(&session.lock);
    pthread_setcancelstate(manners.cancel_before, NULL);
    errno = manners.errno_before;
}

static void take_reading(void) { session.reading = true; }

static void drop_reading(void) {
    session.reading = false;
    atomic_fetch_add(&session.turn, 1);
    word_wake_all(&session.turn);
}

/* Lets the others on until one of them has done something. */
static void wait_turn(void) {
    uint32_t seen = atomic_load(&session.turn);
    lock_drop(&session.lock);
    word_wait(&session.turn, seen);
    lock_take(&session.lock);
}

/* Sends a frame without waiting. A connection that is broken is shut down, so that its reader notices: only the
 * reader replaces it. False: nothing was sent, and `*full` says whether it is worth waiting. */
static bool send_now(const struct wire_frame *frame, bool *full) {
    *full = false;
    if (!session.connected) return false;
    ssize_t sent;
    do sent = send(session.fd, frame, sizeof *frame, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    if (sent == (ssize_t)sizeof *frame) return true;
    *full = sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    if (!*full) shutdown(session.fd, SHUT_RDWR);
    return false;
}

/* Ends the connection; everybody asks anew on the next one. For the reader, or while there is none. */
static void hang_up(void) {
    close(session.fd);
    session.connected = false;
    for (struct waiter *waiter = session.waiters; waiter; waiter = waiter->next) waiter->sent = false;
}

/* Sends a waiter's question, or does one step towards being able to. */
static void send_need(struct waiter *waiter) {
    bool full;
    waiter->sent = send_now(&waiter->need, &full);
    if (waiter->sent) return;
    if (!full) {
        if (session.reading)
            wait_turn(); /* the reader will find that the connection is shut down */
        else
            hang_up();
        return;
    }
    struct pollfd writable = {.fd = session.fd, .events = POLLOUT};
    lock_drop(&session.lock);
    poll(&writable, 1, 20);
    lock_take(&session.lock);
}

static void answer(const struct wire_frame *frame) {
    for (struct waiter *waiter = session.waiters; waiter; waiter = waiter->next) {
        if (waiter->need.serial != frame->serial || waiter->answer != WAITING) continue;
        if (frame->type == WIRE_REJECTED) waiter->answer = frame->code ? (int)frame->code : WIRE_SHORTAGE;
        if (frame->type == WIRE_GRANTED && frame->bytes == waiter->need.bytes) {
            lease_accept(&client_page()->slot[waiter->need.slot], frame->bytes);
            waiter->answer = WIRE_OK;
        }
    }
}

/* Reads one frame from the connection and hands it to its waiter. Holds the reading role; the lock is dropped while
 * it waits. */
static void read_one(void) {
    struct wire_frame frame;
    int fd = session.fd;
    lock_drop(&session.lock);
    bool read = dial_read(fd, &frame);
    lock_take(&session.lock);
    if (read)
        answer(&frame);
    else
        hang_up();
}

/* Connects once. Holds the reading role; the lock is dropped meanwhile. DIAL_OK, or why not. */
static struct dialled connect_once(const char *path) {
    ino_t page_file = session.page_file;
    lock_drop(&session.lock);
    struct dialled dialled = dial(path, page_file);
    lock_take(&session.lock);
    if (dialled.outcome != DIAL_OK) return dialled;
    session.fd = dialled.fd;
    session.connected = true;
    if (dialled.page) {
        session.page_fd = dialled.page_fd;
        session.page_file = dialled.page_file;
        atomic_store_explicit(&client_page_now, dialled.page, memory_order_release);
    }
    return dialled;
}

/* Connects again, however long that takes; then everybody asks anew. A refusal is everybody's answer. */
static void reconnect(void) {
    static atomic_flag said = ATOMIC_FLAG_INIT;
    struct options options = options_read();
    for (unsigned pause = FIRST_PAUSE_MS;; pause = pause * 2 < LONGEST_PAUSE_MS ? pause * 2 : LONGEST_PAUSE_MS) {
        struct dialled dialled = connect_once(options.socket);
        if (dialled.outcome == DIAL_REFUSED) {
            say_once(&said, "the scheduler refused this process (code %d)", dialled.code);
            for (struct waiter *waiter = session.waiters; waiter; waiter = waiter->next)
                if (waiter->answer == WAITING) waiter->answer = dialled.code;
            return;
        }
        if (dialled.outcome == DIAL_OK) return;
        lock_drop(&session.lock);
        sleep_ns(pause * UINT64_C(1000000));
        lock_take(&session.lock);
    }
}

/* The first connection. A socket that exists but refuses is a scheduler that is being restarted: tried again for a
 * while. One that does not exist is none at all. */
static int connect_first(void) {
    static atomic_flag said = ATOMIC_FLAG_INIT;
    struct options options = options_read();
    unsigned waited = 0;
    for (unsigned pause = FIRST_PAUSE_MS;; pause = pause * 2 < LONGEST_PAUSE_MS ? pause * 2 : LONGEST_PAUSE_MS) {
        struct dialled dialled = connect_once(options.socket);
        if (dialled.outcome == DIAL_OK) return WIRE_OK;
        if (dialled.outcome == DIAL_REFUSED) {
            say_once(&said, "no GPU memory for this process: the scheduler refused it (%s)",
                     dialled.code == WIRE_BAD_VERSION ? "it is of another release" : "its container is not running");
            return dialled.code;
        }
        if (dialled.outcome == DIAL_NOBODY || waited >= options.patience_ms) {
            say_once(&said, "no GPU memory for this process: no scheduler answers at %s (%s)", options.socket,
                     dialled.reason);
            return CLIENT_NO_SCHEDULER;
        }
        lock_drop(&session.lock);
        sleep_ns(pause * UINT64_C(1000000));
        lock_take(&session.lock);
        waited += pause;
    }
}

int client_open(void) {
    if (client_page()) return WIRE_OK;
    struct manners manners = begin();
    int outcome = WIRE_OK;
    while (!client_page() && outcome == WIRE_OK) {
        if (session.reading) {
            wait_turn();
            continue;
        }
        take_reading();
        outcome = connect_first();
        drop_reading();
    }
    end(manners);
    return outcome;
}

static void forget_waiter(struct waiter *done) {
    struct waiter **link = &session.waiters;
    while (*link != done) link = &(*link)->next;
    *link = done->next;
}

int client_need(unsigned slot, uint64_t bytes, enum wire_purpose purpose) {
    struct manners manners = begin();
    struct waiter self = {
        .next = session.waiters,
        .need = {.size = sizeof self.need, .type = WIRE_NEED, .slot = (uint16_t)slot, .code = purpose, .bytes = bytes},
        .answer = WAITING,
    };
    self.need.serial = ++session.serial;
    session.waiters = &self;
    while (self.answer == WAITING) {
        if (session.connected && !self.sent) {
            send_need(&self);
            continue;
        }
        if (session.reading) {
            wait_turn();
            continue;
        }
        take_reading();
        if (session.connected)
            read_one();
        else
            reconnect();
        drop_reading();
    }
    forget_waiter(&self);
    end(manners);
    return self.answer;
}

/* Sends a frame that wants no answer. After a restart of the scheduler this is what connects a process again that
 * needs nothing. */
static void tell(enum wire_type type, unsigned slot, uint64_t bytes) {
    struct wire_frame frame = {.size = sizeof frame, .type = type, .slot = (uint16_t)slot, .bytes = bytes};
    struct manners manners = begin();
    bool full;
    if (!send_now(&frame, &full) && !full && !session.reading) {
        take_reading();
        if (session.connected) hang_up();
        if (connect_once(options_read().socket).outcome == DIAL_OK) send_now(&frame, &full);
        drop_reading();
    }
    end(manners);
}

void client_released(unsigned slot) { tell(WIRE_RELEASED, slot, 0); }

void client_physical(unsigned slot, uint64_t bytes) { tell(WIRE_PHYSICAL, slot, bytes); }

void client_forget(void) {
    if (client_page()) close(session.page_fd);
    if (session.connected) close(session.fd);
    atomic_store(&client_page_now, NULL);
    session.connected = session.reading = false;
    session.page_file = 0;
    session.waiters = NULL;
    atomic_store(&session.lock.word, 0);
}
FORGET_IN_CHILD(client_forget);
