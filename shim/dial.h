/* One attempt to open a session: connect, HELLO, WELCOME, the lease page. */
#ifndef GPUSHARE_DIAL_H
#define GPUSHARE_DIAL_H

#include "lease.h"
#include "own.h"
#include "wire.h"

#include <sys/types.h>

struct dialled {
    enum {
        DIAL_OK,
        DIAL_REFUSED,
        DIAL_AWAY,
        DIAL_NOBODY
    } outcome;               /* away: may come back; nobody: there is no socket */
    int code;                /* DIAL_REFUSED: enum wire_code */
    const char *reason;      /* DIAL_AWAY, DIAL_NOBODY: for people */
    struct own connection;   /* DIAL_OK */
    struct own page_file;    /* DIAL_OK, of dial_finish: the lease page */
    struct lease_page *page; /* mapped; NULL if this process has it already */
};

/* Connects and says HELLO. Unless `wait`, it never waits: a scheduler that has no room for one more connection is away.
 */
struct dialled dial_begin(const char *path, bool wait);

/* Waits for WELCOME. `page`: the number of the page's file that this process has from an earlier connection, or 0. It
 * goes on with that one, so a scheduler that offers another refuses it. The connection is the caller's to close. */
struct dialled dial_finish(const struct own *connection, ino_t page);

/* Reads one frame, for as long as that takes. False: the connection is at its end or not ours any more, or what came is
 * no frame. */
bool dial_read(const struct own *connection, struct wire_frame *frame);

#endif
