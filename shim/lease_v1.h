/* The lease page of version 1, for the scheduler: programs that were started before an upgrade go on with it.
 *
 * It differs in two words, which both sides write: where `taken` stands is its headroom, and where `limit` stands what
 * is leased in all. A scheduler that is killed between the two leaves bytes that nobody holds, until the process ends.
 * What one context takes stands where `accepted` does. `peak` is in bytes used, and set back by the scheduler; the
 * other words do not exist.
 */
#ifndef GPUSHARE_LEASE_V1_H
#define GPUSHARE_LEASE_V1_H

#include "lease.h"

/* True if the page is one of version 1. */
bool lease_v1_page_valid(const struct lease_page *page);

/* Prepares a zeroed page of version 1 for `slots` GPUs. */
void lease_v1_page_init(struct lease_page *page, unsigned slots);

/* Takes back up to `at_most` bytes of headroom; returns how many it was. */
uint64_t lease_v1_take_back(struct lease_slot *slot, uint64_t at_most);

/* As lease_look. */
uint64_t lease_v1_look(const struct lease_slot *slot, uint64_t leased);

/* Adds headroom. Raise what is leased first: used = leased − headroom must not be seen below what is really used. */
void lease_v1_extend(struct lease_slot *slot, uint64_t bytes);

#endif
