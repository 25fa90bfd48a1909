/* One attempt to open a session: connect, HELLO, WELCOME, the lease page. */
#ifndef GPUSHARE_DIAL_H
#define GPUSHARE_DIAL_H

#include "lease.h"
#include "wire.h"

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
    int page_fd;             /* DIAL_OK: the new lease page, unless one was handed back */
    struct lease_page *page; /* mapped; NULL if one was handed back */
};

/* `page_fd`: the lease page of an earlier session to hand back, or −1. */
struct dialled dial(const char *path, int page_fd);

/* The same over a connection that there is already; it is closed unless this succeeds. */
struct dialled dial_over(int fd, int page_fd);

/* Reads one frame. False: the connection is at its end, or what came is no frame. */
bool dial_read(int fd, struct wire_frame *frame);

#endif
