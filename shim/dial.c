#define _GNU_SOURCE
#include "dial.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef F_GET_SEALS /* newer than the headers of glibc 2.17 */
#define F_GET_SEALS 1034
#define F_SEAL_SHRINK 2
#endif

#define LOOK_MS 1000

/* Room for one file descriptor beside a frame. */
union passing {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
};

/* Connects to a socket of any path length: a long one through its folder's file descriptor. */
static int connect_to(const char *path, bool wait) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int folder = -1;
    const char *slash = strrchr(path, '/');
    if (strlen(path) < sizeof address.sun_path) {
        strcpy(address.sun_path, path);
    } else {
        char parent[4096];
        if (!slash || (size_t)(slash - path) >= sizeof parent) return -ENAMETOOLONG;
        memcpy(parent, path, (size_t)(slash - path));
        parent[slash - path] = '\0';
        folder = open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (folder < 0) return -errno;
        int length = snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d%s", folder, slash);
        if (length >= (int)sizeof address.sun_path) {
            close(folder);
            return -ENAMETOOLONG;
        }
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | (wait ? 0 : SOCK_NONBLOCK), 0);
    int failed = fd < 0 ? errno : 0;
    if (!failed && connect(fd, (struct sockaddr *)&address, sizeof address) < 0) failed = errno;
    if (folder >= 0) close(folder);
    if (!failed) return fd;
    if (fd >= 0) close(fd);
    return -failed;
}

/* A process that has its page already does not hand it back: the scheduler finds it through /proc. What a program
 * passes, the scheduler would have to close, and how long that takes the program would choose. */
static bool say_hello(int fd) {
    struct wire_frame hello = {.size = sizeof hello, .type = WIRE_HELLO, .code = WIRE_VERSION};
    ssize_t sent;
    do sent = send(fd, &hello, sizeof hello, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)sizeof hello;
}

/* Returns true when there is something to read. A program may close the descriptor while a thread waits on it, which
 * that thread would never hear of: so it looks once in a while. */
static bool readable(const struct own *connection) {
    struct pollfd poll_fd = {.fd = connection->fd, .events = POLLIN};
    while (own_ours(connection))
        if (poll(&poll_fd, 1, LOOK_MS) > 0) return own_ours(connection);
    return false;
}

/* Reads one frame and, with it, at most one file descriptor (−1 if there was none). */
static bool read_frame(const struct own *connection, struct wire_frame *frame, int *passed) {
    size_t have = 0;
    *passed = -1;
    while (have < sizeof *frame && readable(connection)) {
        struct iovec part = {(char *)frame + have, sizeof *frame - have};
        union passing passing;
        struct msghdr message = {
            .msg_iov = &part, .msg_iovlen = 1, .msg_control = passing.bytes, .msg_controllen = sizeof passing.bytes};
        ssize_t got = recvmsg(connection->fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        struct cmsghdr *control = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
        if (control && control->cmsg_level == SOL_SOCKET && control->cmsg_type == SCM_RIGHTS && *passed < 0)
            memcpy(passed, CMSG_DATA(control), sizeof *passed);
        if (got <= 0) break;
        have += (size_t)got;
    }
    if (have == sizeof *frame && frame->size == sizeof *frame) return true;
    if (*passed >= 0) close(*passed);
    *passed = -1;
    return false;
}

bool dial_read(const struct own *connection, struct wire_frame *frame) {
    int passed;
    if (!read_frame(connection, frame, &passed)) return false;
    if (passed >= 0) close(passed); /* nothing after WELCOME brings one */
    return true;
}

/* Maps a lease page. One that could still shrink under us would end the program, so it is refused. */
static struct lease_page *map_page(int page_fd) {
    struct stat file;
    int seals = fcntl(page_fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK)) return NULL;
    if (fstat(page_fd, &file) < 0 || file.st_size < LEASE_PAGE_SIZE) return NULL;
    struct lease_page *page = mmap(NULL, LEASE_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, page_fd, 0);
    if (page == MAP_FAILED) return NULL;
    if (!lease_page_valid(page)) {
        munmap(page, LEASE_PAGE_SIZE);
        return NULL;
    }
    madvise(page, LEASE_PAGE_SIZE, MADV_DONTFORK); /* a forked child is a process of its own */
    return page;
}

/* Takes the page that came with WELCOME, unless it is the one that this process has. */
static void take_page(struct dialled *dialled, int passed, ino_t page) {
    struct stat file;
    if (fstat(passed, &file) < 0) return;
    if (page && file.st_ino != page) {
        dialled->outcome = DIAL_REFUSED;
        dialled->code = WIRE_BAD_VERSION;
    } else if (page || (dialled->page = map_page(passed))) {
        dialled->outcome = DIAL_OK;
    }
}

struct dialled dial_finish(const struct own *connection, ino_t page) {
    struct dialled dialled = {.outcome = DIAL_AWAY, .reason = "it does not speak as a scheduler does"};
    struct wire_frame frame;
    int passed = -1;
    if (read_frame(connection, &frame, &passed)) {
        if (frame.type == WIRE_REFUSED) {
            dialled.outcome = DIAL_REFUSED;
            dialled.code = frame.code ? (int)frame.code : WIRE_NOT_RUNNING;
        } else if (frame.type == WIRE_WELCOME && passed >= 0) {
            take_page(&dialled, passed, page);
        }
    }
    if (dialled.outcome == DIAL_OK)
        dialled.page_file = own_take(passed);
    else if (passed >= 0)
        close(passed);
    return dialled;
}

struct dialled dial_begin(const char *path, bool wait) {
    int fd = connect_to(path, wait);
    if (fd >= 0) {
        struct own connection = own_take(fd);
        if (say_hello(connection.fd)) return (struct dialled){.outcome = DIAL_OK, .connection = connection};
        own_close(&connection);
        return (struct dialled){.outcome = DIAL_AWAY, .reason = "it does not speak as a scheduler does"};
    }
    /* Refused or full: a scheduler that is starting, or one that was killed and left its socket. */
    bool back = fd == -ECONNREFUSED || fd == -EAGAIN || fd == -EINTR;
    return (struct dialled){.outcome = back ? DIAL_AWAY : DIAL_NOBODY, .reason = strerror(-fd)};
}
