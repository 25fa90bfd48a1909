/* The session against a scheduler's end in the same process: many threads ask at once, answers come in another order,
 * the connection breaks again and again. Made for the thread sanitizer. */
#define _GNU_SOURCE
#include "../client.h"
#include "../dial.h"

#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define QUESTIONS 300
#define BREAK_EVERY 97

static int listener;
static char path[] = "/tmp/gpushare-client-XXXXXX/s";
static _Atomic unsigned answered, connections;
static int page; /* the same on each connection */

static int new_page(void) {
    static struct lease_page page;
    int fd = memfd_create("gpushare-lease", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && ftruncate(fd, LEASE_PAGE_SIZE) == 0);
    CHECK(lease_page_init(&page, 1) && write(fd, &page, sizeof page) == sizeof page);
    CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
    return fd;
}

static void send_frame(int connection, struct wire_frame frame, int page) {
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&frame, sizeof frame};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    frame.size = sizeof frame;
    if (page >= 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        *header =
            (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
        memcpy(CMSG_DATA(header), &page, sizeof page);
    }
    CHECK(sendmsg(connection, &message, MSG_NOSIGNAL) == sizeof frame || errno == EPIPE || errno == ECONNRESET);
}

/* A process passes nothing, whether or not it has a page. */
static void read_hello(int connection) {
    struct wire_frame frame;
    char control[CMSG_SPACE(sizeof(int))];
    struct iovec part = {&frame, sizeof frame};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    CHECK(recvmsg(connection, &message, MSG_CMSG_CLOEXEC) == sizeof frame);
    CHECK(frame.type == WIRE_HELLO && frame.code == WIRE_VERSION);
    CHECK(CMSG_FIRSTHDR(&message) == NULL);
}

/* Answers two questions at a time, the later one first. Odd sizes are rejected. */
static void serve(int connection) {
    struct wire_frame frame, held = {.type = 0};
    read_hello(connection);
    send_frame(connection, (struct wire_frame){.type = WIRE_WELCOME}, page);
    while (recv(connection, &frame, sizeof frame, MSG_WAITALL) == sizeof frame) {
        if (frame.type != WIRE_NEED) continue;
        if (++answered % BREAK_EVERY == 0) return;
        for (int turn = 0; turn < 2; turn++) {
            struct wire_frame *question = turn ? &held : &frame;
            if (question->type != WIRE_NEED) continue;
            struct wire_frame reply = {.type = question->bytes % 2 ? WIRE_REJECTED : WIRE_GRANTED,
                                       .serial = question->serial,
                                       .code = question->bytes % 2 ? WIRE_OVER_QUOTA : WIRE_OK,
                                       .bytes = question->bytes};
            send_frame(connection, reply, -1);
        }
        held = (struct wire_frame){.type = 0};
        if (answered % 5 == 0 && recv(connection, &frame, sizeof frame, MSG_WAITALL | MSG_DONTWAIT) == sizeof frame)
            held = frame;
    }
}

static void *scheduler(void *unused) {
    for (int connection; (connection = accept(listener, NULL, NULL)) >= 0; close(connection)) {
        connections++;
        serve(connection);
    }
    return unused;
}

static void *ask(void *number) {
    for (unsigned turn = 0; turn < QUESTIONS; turn++) {
        uint64_t bytes = (uint64_t)(size_t)number * 1000 + turn;
        errno = 1234;
        CHECK(client_open() == WIRE_OK);
        int outcome = client_need(0, bytes, WIRE_FOR_MEMORY);
        CHECK(outcome == (bytes % 2 ? WIRE_OVER_QUOTA : WIRE_OK));
        client_released(0);
        CHECK(errno == 1234);
    }
    return NULL;
}

/* The process would go on with the page that it has, and the scheduler with the other. */
static void refuse_another_page(void) {
    struct wire_frame more;
    struct stat mine;
    int ends[2], other = new_page();
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0 && fstat(page, &mine) == 0);
    send_frame(ends[0], (struct wire_frame){.type = WIRE_WELCOME}, other);
    struct own connection = own_take(ends[1]);
    struct dialled dialled = dial_finish(&connection, mine.st_ino);
    CHECK(dialled.outcome == DIAL_REFUSED && dialled.code == WIRE_BAD_VERSION);
    own_close(&connection);
    CHECK(recv(ends[0], &more, sizeof more, 0) == 0);
    close(ends[0]);
    close(other);
}

int main(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    pthread_t thread;
    page = new_page();
    path[strlen(path) - 2] = '\0';
    CHECK(mkdtemp(path) != NULL);
    path[strlen(path)] = '/';
    CHECK(setenv("GPUSHARE_SOCKET", path, 1) == 0);
    CHECK(client_open() == CLIENT_NO_SCHEDULER && client_page() == NULL);
    strcpy(address.sun_path, path);
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 64) == 0);
    CHECK(pthread_create(&thread, NULL, scheduler, NULL) == 0);
    in_threads(ask);
    CHECK(client_page() && lease_page_valid(client_page()));
    CHECK(connections > 10);
    refuse_another_page();
    client_forget();
    CHECK(client_page() == NULL);
    shutdown(listener, SHUT_RDWR);
    pthread_join(thread, NULL);
    unlink(path);
}
