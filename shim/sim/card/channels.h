/* Channels: where the ranks of a communicator meet. A channel belongs to the card's file, so that its ranks may be in
 * any processes; each has words of its own there that only it writes. What it means is its users' affair. */
#ifndef SIM_CARD_CHANNELS_H
#define SIM_CARD_CHANNELS_H

#include "card.h"

/* One more rank takes part in the channel of this key, which is made if need be; −1: there is no room. */
int card_channel_join(uint64_t key, unsigned ranks);

/* One takes part no more. A channel that all have left is free. */
void card_channel_leave(unsigned channel);

/* Whether all have joined. */
bool card_channel_whole(unsigned channel);

/* A rank's word, and what is least of all of them. Who writes one rings the bell. */
uint64_t card_channel_word(unsigned channel, unsigned rank);
uint64_t card_channel_least(unsigned channel);
void card_channel_write(unsigned channel, unsigned rank, uint64_t value);

/* The bell's count, and sleeping until it is another, for `ms` at most. */
uint32_t card_channel_bell(unsigned channel);
void card_channel_ring(unsigned channel);
void card_channel_wait(unsigned channel, uint32_t bell, unsigned ms);

#endif
