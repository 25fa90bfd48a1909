#include "nccl.h"

uint64_t mix(uint64_t key, uint64_t with) {
    key = (key ^ with) * 0x9e3779b97f4a7c15ull;
    return key ^ key >> 29;
}

int pair_channel(ncclComm comm, unsigned peer, bool sends) {
    int *channel = &comm->pairs[2 * peer + sends];
    if (*channel == 0) {
        unsigned from = sends ? comm->rank : peer, to = sends ? peer : comm->rank;
        *channel = driver()->sim_channel_join(mix(mix(comm->key, from + 1), to + 1) | 1, 2) + 1;
    }
    return *channel - 1;
}
