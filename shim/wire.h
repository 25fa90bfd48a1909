/* What the shim and the scheduler say to each other over a container's UNIX stream socket.
 *
 * Every message is one `struct wire_frame`, in the host's byte order (both ends are always on one machine). A frame
 * has a fixed size, so a reader needs no buffer management and an oversize length is an error by definition.
 * Nothing in a frame identifies anyone: the scheduler knows the container by the socket and the process by its peer
 * credentials.
 *
 *   process                                     scheduler
 *   HELLO  code = WIRE_VERSION                  WELCOME  + its lease page (SCM_RIGHTS): a new one, or the one it has
 *                                               REFUSED  code = enum wire_code; the scheduler closes
 *   NEED   serial, slot, bytes, code            GRANTED  serial, slot, bytes: these bytes are the caller's; they never
 *          (code = enum wire_purpose)                    passed through the headroom, so nobody can race for them
 *                                               REJECTED serial, code = enum wire_code: CUDA's out-of-memory error
 *   RELEASED  slot: headroom has grown while the slot's pressure flag was set; a hint, no answer
 *   PHYSICAL  slot, bytes: the card had no memory although the lease had; a report, no answer
 *
 * What was granted on a connection that broke and was not heard of (the page tells) is sent again when the
 * process asks again: the process reads what has arrived before it connects anew, and asks anew for what it has not
 * been given.
 *
 * A process passes no file descriptor: a scheduler finds the page of a process that it does not know through /proc.
 *
 * A NEED is answered when it can be; any number may be open on one connection, distinguished by `serial`. A connection
 * that breaks any rule above is closed; the process's lease stays its own until the process ends.
 */
#ifndef GPUSHARE_WIRE_H
#define GPUSHARE_WIRE_H

#include <stdint.h>

#define WIRE_VERSION 3

enum wire_type {
    WIRE_HELLO = 1,
    WIRE_WELCOME = 2,
    WIRE_REFUSED = 3,
    WIRE_NEED = 4,
    WIRE_GRANTED = 5,
    WIRE_REJECTED = 6,
    WIRE_RELEASED = 7,
    WIRE_PHYSICAL = 8,
};

/* What a NEED is for. A context's bytes are the container's overhead; the rest is its own allocation. */
enum wire_purpose {
    WIRE_FOR_MEMORY = 0,
    WIRE_FOR_CONTEXT = 1,
};

/* Why a HELLO was refused or a NEED rejected. */
enum wire_code {
    WIRE_OK = 0,
    WIRE_BAD_VERSION = 1, /* the shim and the scheduler are of different releases */
    WIRE_NOT_RUNNING = 2, /* the scheduler does not know a running container behind this socket */
    WIRE_OVER_QUOTA = 3,  /* used + bytes would pass the quota: waiting cannot help */
    WIRE_SHORTAGE = 4,    /* on_shortage = fail, or max_wait_seconds have passed */
    WIRE_KILLED = 5,      /* the container is being ended */
};

struct wire_frame {
    uint32_t size; /* sizeof(struct wire_frame), always */
    uint16_t type; /* enum wire_type */
    uint16_t slot; /* index of the GPU in the lease page */
    uint32_t serial;
    uint32_t code;
    uint64_t bytes;
};

#endif
