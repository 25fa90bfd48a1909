#include "channels.h"

#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct card_channel *at(unsigned channel) { return &card->channel[channel]; }

static struct card_channel *find(uint64_t key, uint64_t is) {
    for (unsigned tries = 0; tries < CARD_CHANNELS; tries++) {
        struct card_channel *channel = at((unsigned)(key + tries) % CARD_CHANNELS);
        uint64_t found = is;
        if (atomic_compare_exchange_strong(&channel->key, &found, key) || found == key) return channel;
    }
    return NULL;
}

int card_channel_join(uint64_t key, unsigned ranks) {
    if (card_open() == NULL || ranks > CARD_RANKS) return -1;
    struct card_channel *channel =
        find(key, key); /* one that is there; else the first free one, as for all its ranks */
    if (channel == NULL) channel = find(key, 0);
    if (channel == NULL) return -1;
    channel->ranks = ranks;
    atomic_fetch_add(&channel->joined, 1);
    card_channel_ring((unsigned)(channel - card->channel));
    return (int)(channel - card->channel);
}

void card_channel_leave(unsigned channel) {
    struct card_channel *here = at(channel);
    if (atomic_fetch_add(&here->left, 1) + 1 < here->ranks) return;
    for (unsigned rank = 0; rank < CARD_RANKS; rank++) atomic_store(&here->word[rank], 0);
    atomic_store(&here->joined, 0);
    atomic_store(&here->left, 0);
    atomic_store(&here->key, 0);
}

bool card_channel_whole(unsigned channel) { return atomic_load(&at(channel)->joined) >= at(channel)->ranks; }

uint64_t card_channel_word(unsigned channel, unsigned rank) { return atomic_load(&at(channel)->word[rank]); }

uint64_t card_channel_least(unsigned channel) {
    uint64_t least = UINT64_MAX;
    for (unsigned rank = 0; rank < at(channel)->ranks; rank++) {
        uint64_t word = atomic_load(&at(channel)->word[rank]);
        if (word < least) least = word;
    }
    return least;
}

void card_channel_write(unsigned channel, unsigned rank, uint64_t value) {
    atomic_store(&at(channel)->word[rank], value);
    card_channel_ring(channel);
}

uint32_t card_channel_bell(unsigned channel) { return atomic_load(&at(channel)->bell); }

void card_channel_ring(unsigned channel) {
    atomic_fetch_add(&at(channel)->bell, 1);
    syscall(SYS_futex, &at(channel)->bell, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void card_channel_wait(unsigned channel, uint32_t bell, unsigned ms) {
    struct timespec at_most = {ms / 1000, (long)(ms % 1000) * 1000000};
    syscall(SYS_futex, &at(channel)->bell, FUTEX_WAIT, bell, &at_most, NULL, 0);
}
