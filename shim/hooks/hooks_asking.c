/* Asking whether the card is done, which takes and gives no memory.
 *
 * While a process is locked the driver holds back what it gives to the card, but not these: where nothing is queued
 * they just look at the memory that the card would answer in. A checkpoint takes that memory away, and whoever looks
 * meanwhile dies of it (signal 11; an H200 with driver 580). So nobody looks while the memory is being moved. */
#include "client.h"
#include "lock.h"
#include "resolve.h"

#define AGAIN_NS 1000000 /* before it is locked, and after it is unlocked */
#define TELL_EVERY 1000  /* tries: about a second, of one that is not locked */

/* A call that the driver does hold back until the process is unlocked. */
static void wait_in_the_driver(void) {
    unsigned flags;
    REAL(cuCtxGetFlags)(&flags);
}

__attribute__((cold, noinline)) static void wait_to_enter(struct lease_page *page) {
    for (unsigned tries = 1; client_page() == page && !lease_enter(page); tries++) {
        wait_in_the_driver();
        /* A scheduler that does not know of this process, since it was not to be seen when that one took over, learns
         * of it so. */
        if (tries % TELL_EVERY == 0) client_released(0);
        sleep_ns(AGAIN_NS);
    }
}

static struct lease_page *enter(void) {
    struct lease_page *page = client_page();
    if (page && !lease_enter(page)) wait_to_enter(page);
    return page;
}

/* Not in a child that a signal's handler has forked within the call: that has no page, and the parent's is the parent's
 * to leave. */
static int leave(struct lease_page *page, int result) {
    if (page && client_page() == page) lease_leave(page);
    return result;
}

#define ASK(name, arguments)                                                                                           \
    struct lease_page *page = enter();                                                                                 \
    return leave(page, REAL(name) arguments)

int cuCtxSynchronize(void) { ASK(cuCtxSynchronize, ()); }
int cuCtxSynchronize_v2(CUcontext context) { ASK(cuCtxSynchronize_v2, (context)); }
int cuStreamSynchronize(CUstream stream) { ASK(cuStreamSynchronize, (stream)); }
int cuStreamSynchronize_ptsz(CUstream stream) { ASK(cuStreamSynchronize_ptsz, (stream)); }
int cuStreamQuery(CUstream stream) { ASK(cuStreamQuery, (stream)); }
int cuStreamQuery_ptsz(CUstream stream) { ASK(cuStreamQuery_ptsz, (stream)); }
int cuEventSynchronize(CUevent event) { ASK(cuEventSynchronize, (event)); }
int cuEventQuery(CUevent event) { ASK(cuEventQuery, (event)); }

int cuEventElapsedTime(float *milliseconds, CUevent begin, CUevent end) {
    ASK(cuEventElapsedTime, (milliseconds, begin, end));
}

int cuEventElapsedTime_v2(float *milliseconds, CUevent begin, CUevent end) {
    ASK(cuEventElapsedTime_v2, (milliseconds, begin, end));
}
