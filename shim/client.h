/* This process's session with the scheduler: the socket and the lease page. Knows no CUDA.
 *
 * Nothing here runs on its own: there is no thread. A thread that needs something is at the socket itself; if several
 * wait at once, one of them reads for all. No lock is held while anything waits. Every function keeps errno, and none
 * is a cancellation point.
 */
#ifndef GPUSHARE_CLIENT_H
#define GPUSHARE_CLIENT_H

#include "lease.h"
#include "wire.h"

#include <stdatomic.h>
#include <stddef.h>

/* Beside the codes of wire.h: there is no scheduler to ask. */
#define CLIENT_NO_SCHEDULER (-1)

extern _Atomic(struct lease_page *) client_page_now;

/* The lease page, or NULL while there is no session. */
static inline struct lease_page *client_page(void) {
    return atomic_load_explicit(&client_page_now, memory_order_acquire);
}

/* Opens the session if there is none yet. WIRE_OK, the code of a refusal, or CLIENT_NO_SCHEDULER. */
int client_open(void);

/* Asks for `bytes` and waits for the answer, for as long as it takes; a scheduler that goes away is waited for.
 * WIRE_OK: the bytes are the caller's. Otherwise the code of the rejection. Call with an open session. */
int client_need(unsigned slot, uint64_t bytes, enum wire_purpose purpose);

/* Headroom has grown while the slot's pressure flag was set. */
void client_released(unsigned slot);

/* The card had no memory although the lease had. */
void client_physical(unsigned slot, uint64_t bytes);

/* In a forked child: the session is the parent's; this process has none. */
void client_forget(void);

#endif
