#define _GNU_SOURCE
#include "options.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DEFAULT_SOCKET "/run/gpushare/gpushare.sock"
#define DEFAULT_PATIENCE_MS 60000

struct options options_read(void) {
    const char *socket = secure_getenv("GPUSHARE_SOCKET");
    const char *patience = secure_getenv("GPUSHARE_PATIENCE");
    return (struct options){
        .socket = socket && *socket ? socket : DEFAULT_SOCKET,
        .patience_ms = patience ? (unsigned)strtoul(patience, NULL, 10) * 1000 : DEFAULT_PATIENCE_MS,
    };
}

void say_once(atomic_flag *said, const char *format, ...) {
    if (atomic_flag_test_and_set(said)) return;
    int saved = errno;
    char line[512] = "gpushare: ";
    const int begin = sizeof "gpushare: " - 1;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line + begin, sizeof line - begin - 1, format, arguments);
    va_end(arguments);
    if (length > 0) {
        length += begin;
        if (length > (int)sizeof line - 2) length = sizeof line - 2;
        line[length++] = '\n';
        /* One write, so that lines of several processes do not mix. If it fails there is nobody to tell. */
        syscall(SYS_write, STDERR_FILENO, line, (size_t)length); /* libc's is a cancellation point */
    }
    errno = saved;
}
