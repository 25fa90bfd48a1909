/* Taking memory of the card and giving it back: by compare-and-swap in a GPU's unit table. */
#ifndef SIM_CARD_UNITS_H
#define SIM_CARD_UNITS_H

#include "card.h"

/* Takes units for this process, all or none. False: the card has fewer. `taken` receives their numbers. */
bool card_take(unsigned gpu, uint64_t units, uint32_t *taken);
void card_give(unsigned gpu, uint64_t units, const uint32_t *taken);

/* All of this process's memory on a GPU leaves the card; how many units it was. */
uint64_t card_put_away(unsigned gpu);
/* As many come back, though not the same ones. False, with nothing taken: the card has fewer. */
bool card_bring_back(unsigned gpu, uint64_t units);

#endif
