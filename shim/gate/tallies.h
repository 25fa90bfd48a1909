/* What CUDA graphs will begin when they are launched: counted while a stream is captured, handed on from the capture to
 * its graph, to graphs that have that one inside, and to what is made executable of them. */
#ifndef GPUSHARE_GATE_TALLIES_H
#define GPUSHARE_GATE_TALLIES_H

#include "gate.h"

enum tally_of { TALLY_CAPTURE, TALLY_GRAPH, TALLY_EXEC };

/* How many there are. While there are none, a launch is a load and a jump. */
extern _Atomic int tallies;

/* Adds operations to what is counted for a capture (by its number), a graph or an executable one. */
void tally_add(enum tally_of of, uint64_t key, const struct gate_step *steps, size_t count);

/* Adds what is counted for one to what is for another. */
void tally_pass_on(enum tally_of from, uint64_t key, enum tally_of to, uint64_t other);

void tally_drop(enum tally_of of, uint64_t key);

/* A copy of the steps, for the caller to free; NULL with none. Those of ranks that have left are not among them. */
struct gate_step *tally_copy(const struct gate *gate, enum tally_of of, uint64_t key, size_t *count);

#endif
