/* What the program holds, from the driver's yes to the driver's free: entries of the ledger, with their charges. */
#ifndef GPUSHARE_HELD_H
#define GPUSHARE_HELD_H

#include "cuda_abi.h"
#include "ledger.h"

/* Notes what is held. False: no host memory for that; the caller gives the allocation back. */
bool held_note(const struct ledger_entry *entry);

/* Ends a free: gives back what the entry stood for, or notes the entry again if the driver has refused. `known`: it was
 * in the ledger. What was not (imported, mapped from outside, freed already) is between the program and the driver.
 * Returns `result`. */
CUresult held_end_free(CUresult result, bool known, const struct ledger_entry *entry);

/* Drops everything on a slot's GPU that belonged to a context which is gone; NULL: to the primary one. */
void held_context_gone(CUcontext context, int slot);

#endif
