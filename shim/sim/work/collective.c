/* What the simulated NCCL needs of the card: channels in which ranks meet, and kernels that wait there for each other.
 */
#include "driver.h"

#include "card/channels.h"

EXPORT int sim_channel_join(uint64_t key, unsigned ranks);
EXPORT void sim_channel_leave(unsigned channel);
EXPORT bool sim_channel_whole(unsigned channel, bool wait);
EXPORT uint64_t sim_channel_word(unsigned channel, unsigned rank);
EXPORT void sim_channel_write(unsigned channel, unsigned rank, uint64_t value);
EXPORT bool sim_channel_reached(unsigned channel, uint64_t number, bool wait);
EXPORT void sim_channel_abort(unsigned channel, unsigned rank);
EXPORT CUresult sim_collective(CUstream stream, unsigned channel, unsigned rank, uint64_t ns);

#define LOOK_MS 50

int sim_channel_join(uint64_t key, unsigned ranks) { return card_channel_join(key, ranks); }

void sim_channel_leave(unsigned channel) { card_channel_leave(channel); }

/* Whether all ranks have joined; `wait`: once they have. */
bool sim_channel_whole(unsigned channel, bool wait) {
    for (uint32_t bell; bell = card_channel_bell(channel), !card_channel_whole(channel);) {
        if (!wait) return false;
        card_channel_wait(channel, bell, LOOK_MS);
    }
    return true;
}

uint64_t sim_channel_word(unsigned channel, unsigned rank) { return card_channel_word(channel, rank); }

void sim_channel_write(unsigned channel, unsigned rank, uint64_t value) { card_channel_write(channel, rank, value); }

/* Whether all ranks' words are at least this; `wait`: once they are. */
bool sim_channel_reached(unsigned channel, uint64_t number, bool wait) {
    for (uint32_t bell; bell = card_channel_bell(channel), card_channel_least(channel) < number;) {
        if (!wait) return false;
        card_channel_wait(channel, bell, LOOK_MS);
    }
    return true;
}

/* Kernels that this rank has given wait for nobody any more. */
void sim_channel_abort(unsigned channel, unsigned rank) { card_leave(channel, rank); }

/* Gives the stream's GPU a kernel that occupies it until all ranks of the channel have given theirs, and then for `ns`.
 */
CUresult sim_collective(CUstream stream, unsigned channel, unsigned rank, uint64_t ns) {
    ENTERED_IN(context);
    struct launch launch = {KERNEL_COLLECTIVE, 1, {(uint64_t)channel << 32 | rank, ns}};
    return work_submit(stream, &(struct work){.type = NODE_KERNEL, .launch = launch});
}
