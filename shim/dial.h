/* One attempt to open a session: connect, HELLO, WELCOME, the lease page. */
#ifndef GPUSHARE_DIAL_H
#define GPUSHARE_DIAL_H

#include "lease.h"
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
    int fd;                  /* DIAL_OK: the connection */
    int page_fd;             /* DIAL_OK: the lease page, unless this process has it already */
    ino_t page_file;         /* DIAL_OK: which memory file the page is */
    struct lease_page *page; /* mapped; NULL if this process has it already */
};

/* `page_file`: the lease page that this process has from an earlier connection, or 0. It goes on with that one, so
 * a scheduler that offers another refuses it. */
struct dialled dial(const char *path, ino_t page_file);

/* The same over a connection that there is already; it is closed unless this succeeds. */
struct dialled dial_over(int fd, ino_t page_file);

/* Reads one frame. False: the connection is at its end, or what came is no frame. */
bool dial_read(int fd, struct wire_frame *frame);

#endif
