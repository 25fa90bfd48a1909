/* Notes in the lease page that this process shares memory with another process, or between cards: such memory does not
 * come back from host memory, so the scheduler must not move it (lease.h). */
#ifndef GPUSHARE_SHARE_H
#define GPUSHARE_SHARE_H

#include "lease.h"

/* Before the driver's call. NULL: nothing has to be noted. */
struct lease_page *share_begin(uint32_t how);

/* After it. Returns `result`. */
int share_end(struct lease_page *page, uint32_t how, int result);

/* Makes a call that shares memory if it succeeds. */
#define SHARE(how, call)                                                                                               \
    struct lease_page *page_ = share_begin(how);                                                                       \
    return share_end(page_, how, call)

#endif
