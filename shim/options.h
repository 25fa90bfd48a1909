/* What the environment says, read when it is first needed and never in a set-user-ID program. And the one way in
 * which the shim ever says anything. */
#ifndef GPUSHARE_OPTIONS_H
#define GPUSHARE_OPTIONS_H

#include <stdatomic.h>

struct options {
    const char *socket;   /* GPUSHARE_SOCKET: where the scheduler listens */
    unsigned patience_ms; /* GPUSHARE_PATIENCE: how long a first connection that is refused is tried again */
};

struct options options_read(void);

/* Writes one line to stderr; the second time with the same `said` it is silent. Keeps errno. */
void say_once(atomic_flag *said, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
