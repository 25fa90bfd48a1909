#define _GNU_SOURCE
#include "own.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define HIGHEST 1024 /* a number above makes the kernel's table of the process larger, and select fails with it */
#define ROOM 32

struct own own_take(int fd) {
    struct own own = {.fd = fd};
    struct rlimit limit;
    struct stat file;
    int high = -1, top = HIGHEST;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < HIGHEST) top = (int)limit.rlim_cur;
    if (fd < top - ROOM) high = fcntl(fd, F_DUPFD_CLOEXEC, top - ROOM);
    if (high >= 0) {
        close(fd);
        own.fd = high;
    }
    if (fstat(own.fd, &file) == 0) {
        own.device = file.st_dev;
        own.file = file.st_ino;
    }
    return own;
}

bool own_ours(const struct own *own) {
    struct stat file;
    return own->file && fstat(own->fd, &file) == 0 && file.st_dev == own->device && file.st_ino == own->file;
}

void own_close(struct own *own) {
    if (own_ours(own)) close(own->fd);
    own->file = 0;
}
