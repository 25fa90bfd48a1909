/* The card that this process has open; for the files of this folder alone. */
#ifndef SIM_CARD_OPENED_H
#define SIM_CARD_OPENED_H

#include "card.h"

#include <time.h>

extern struct card *card; /* NULL: none */
extern int card_fd;
extern bool card_at_home; /* this process is in the card's own PID namespace */

/* The unit table of a GPU. */
_Atomic uint32_t *card_owners(unsigned gpu);

static inline uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

#endif
