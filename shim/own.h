/* A descriptor of ours in a process that is another's: its program may close every number there is, and open its own
 * under them. So a descriptor is known by which file it is, and a number that stands for another file is not touched.
 */
#ifndef GPUSHARE_OWN_H
#define GPUSHARE_OWN_H

#include <stdbool.h>
#include <sys/types.h>

struct own {
    int fd;
    dev_t device;
    ino_t file; /* 0: there is none */
};

/* Takes over a descriptor that was just made: at a high number, out of the way of programs that count on low ones. */
struct own own_take(int fd);

/* True if the number is ours still. */
bool own_ours(const struct own *own);

/* Closes it, unless it is not ours any more. */
void own_close(struct own *own);

#endif
