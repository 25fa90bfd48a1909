/* A UNIX socket of the container on the standard streams: what a socket leads to that ssh forwards. One byte says that
 * it is reached; what follows are its own. */
#define _GNU_SOURCE
#include "connect.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int reached(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(path);
    int peer = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (peer < 0) return -1;
    if (length >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(address.sun_path, path, length);
    return connect(peer, (struct sockaddr *)&address, sizeof address) ? -1 : peer;
}

/* Until either end has no more. */
static void copy(int from, int to) {
    static char buffer[64 << 10];
    ssize_t size, done;
    while ((size = read(from, buffer, sizeof buffer)) > 0)
        for (ssize_t at = 0; at < size; at += done)
            if ((done = write(to, buffer + at, (size_t)(size - at))) <= 0) return;
}

int connect_to(const char *path) {
    int peer = reached(path);
    if (peer < 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return 1;
    }
    if (write(STDOUT_FILENO, "", 1) != 1) return 1;
    pid_t parent = getpid();
    /* Two processes: neither direction waits for the other. */
    pid_t typing = fork();
    if (typing < 0) return 1;
    if (typing == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) return 1;
        copy(STDIN_FILENO, peer);
        shutdown(peer, SHUT_WR);
        return 0;
    }
    copy(peer, STDOUT_FILENO);
    kill(typing, SIGKILL);
    return 0;
}
