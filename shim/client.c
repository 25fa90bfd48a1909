#define _GNU_SOURCE
#include "client.h"

#include "dial.h"
#include "fork.h"
#include "image.h"
#include "lock.h"
#include "options.h"
#include "own.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/socket.h>

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
    struct own connection;
    bool connected; /* HELLO is said */
    bool welcomed;  /* and answered: questions may be asked */
    bool reading;   /* a thread is at the socket, or connecting, outside the lock: it alone may change the connection */
    struct own page;
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
 * reader replaces it. (One that the program has closed the reader finds out by itself.) False: nothing was sent, and
 * `*full` says whether it is worth waiting. */
static bool send_now(const struct wire_frame *frame, bool *full) {
    *full = false;
    if (!session.connected || !own_ours(&session.connection)) return false;
    ssize_t sent;
    do sent = send(session.connection.fd, frame, sizeof *frame, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    if (sent == (ssize_t)sizeof *frame) return true;
    *full = sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    if (!*full) shutdown(session.connection.fd, SHUT_RDWR);
    return false;
}

/* Ends the connection, if there is one; everybody asks anew on the next one. For the reader, or while there is none. */
static void hang_up(void) {
    own_close(&session.connection);
    session.connected = session.welcomed = false;
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
    struct pollfd writable = {.fd = session.connection.fd, .events = POLLOUT};
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
    struct own connection = session.connection;
    lock_drop(&session.lock);
    bool read = dial_read(&connection, &frame);
    lock_take(&session.lock);
    if (read)
        answer(&frame);
    else
        hang_up();
}

/* HELLO is said. Returns whether it is. */
static bool began(const struct dialled *dialled) {
    if (dialled->outcome != DIAL_OK) return false;
    session.connection = dialled->connection;
    session.connected = true;
    return true;
}

/* Connects once, or goes on with a connection that was begun. Holds the reading role; the lock is dropped meanwhile.
 * DIAL_OK, or why not. */
static struct dialled connect_once(void) {
    if (!session.connected) {
        lock_drop(&session.lock);
        struct dialled begun = dial_begin(options_read().socket, true);
        lock_take(&session.lock);
        if (!began(&begun)) return begun;
    }
    struct own connection = session.connection;
    ino_t page_file = session.page_file;
    lock_drop(&session.lock);
    struct dialled dialled = dial_finish(&connection, page_file);
    lock_take(&session.lock);
    if (dialled.outcome != DIAL_OK) {
        hang_up();
        return dialled;
    }
    session.welcomed = true;
    if (dialled.page || !own_ours(&session.page))
        session.page = dialled.page_file;
    else
        own_close(&dialled.page_file);
    if (dialled.page) {
        session.page_file = dialled.page_file.file;
        atomic_store_explicit(&client_page_now, dialled.page, memory_order_release);
        image_watch(dialled.page);
    }
    return dialled;
}

/* Connects again, however long that takes; then everybody asks anew. A refusal is everybody's answer. */
static void reconnect(void) {
    static atomic_flag said = ATOMIC_FLAG_INIT;
    for (unsigned pause = FIRST_PAUSE_MS;; pause = pause * 2 < LONGEST_PAUSE_MS ? pause * 2 : LONGEST_PAUSE_MS) {
        struct dialled dialled = connect_once();
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
        struct dialled dialled = connect_once();
        if (dialled.outcome == DIAL_OK) return WIRE_OK;
        if (dialled.outcome == DIAL_REFUSED) {
            say_once(&said, "no GPU memory for this process: the scheduler refused it (%s)",
                     dialled.code == WIRE_BAD_VERSION ? "another release started its container; start it again"
                                                      : "its container is not running");
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
        if (session.welcomed && !self.sent) {
            send_need(&self);
            continue;
        }
        if (session.reading) {
            wait_turn();
            continue;
        }
        take_reading();
        if (session.welcomed)
            read_one();
        else
            reconnect();
        drop_reading();
    }
    forget_waiter(&self);
    end(manners);
    return self.answer;
}

/* Sends a frame that wants no answer, and never waits: a free must not, whatever state the scheduler is in. After a
 * restart of the scheduler this is what connects a process again that needs nothing: the frame follows HELLO at once,
 * and WELCOME is read by the next thread that asks for something. */
static void tell(enum wire_type type, unsigned slot, uint64_t bytes) {
    struct wire_frame frame = {.size = sizeof frame, .type = type, .slot = (uint16_t)slot, .bytes = bytes};
    struct manners manners = begin();
    bool full;
    if (!send_now(&frame, &full) && !full && !session.reading) {
        hang_up();
        struct dialled begun = dial_begin(options_read().socket, false);
        if (began(&begun)) send_now(&frame, &full);
    }
    end(manners);
}

void client_released(unsigned slot) { tell(WIRE_RELEASED, slot, 0); }

void client_physical(unsigned slot, uint64_t bytes) { tell(WIRE_PHYSICAL, slot, bytes); }

void client_forget(void) {
    own_close(&session.page);
    own_close(&session.connection);
    atomic_store(&client_page_now, NULL);
    image_watch(NULL);
    session.connected = session.welcomed = session.reading = false;
    session.page_file = 0;
    session.waiters = NULL;
    atomic_store(&session.lock.word, 0);
}
FORGET_IN_CHILD(client_forget);
