/* Preloaded into a trial's program (job_card.py): for it, the path KEPT leads to what is open as descriptor KEPT_FD.
 * So a program finds a card whose node was taken away, if one can still be opened by an old descriptor. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static const char *led(const char *path, char *room, size_t size) {
    const char *kept = getenv("KEPT"), *number = getenv("KEPT_FD");
    if (!kept || !number || !path || strcmp(path, kept) != 0) return path;
    snprintf(room, size, "/proc/self/fd/%s", number);
    return room;
}

int open(const char *path, int flags, ...) {
    char room[64];
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0;
    va_end(more);
    return (int)syscall(SYS_openat, AT_FDCWD, led(path, room, sizeof room), flags, mode);
}

int open64(const char *path, int flags, ...) __attribute__((alias("open")));

int stat(const char *restrict path, struct stat *restrict found) {
    char room[64];
    return (int)syscall(SYS_newfstatat, AT_FDCWD, led(path, room, sizeof room), found, 0);
}

int stat64(const char *restrict path, struct stat64 *restrict found) { return stat(path, (struct stat *)found); }

int __xstat(int version, const char *path, struct stat *found) {
    (void)version;
    return stat(path, found);
}

int __xstat64(int version, const char *path, struct stat64 *found) {
    (void)version;
    return stat(path, (struct stat *)found);
}

int access(const char *path, int mode) {
    char room[64];
    return (int)syscall(SYS_faccessat, AT_FDCWD, led(path, room, sizeof room), mode);
}
