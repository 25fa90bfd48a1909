#include "ledger.h"

#include "fork.h"
#include "lock.h"

#include <stddef.h>
#include <stdlib.h>

#define SHARDS 64
#define FIRST_ROOM 64
#define PAGE 4096

/* Open addressing with linear probing; an empty place has kind 0. Its own cache line, so that shards are apart. */
struct shard {
    struct latch latch;
    uint32_t used;
    uint32_t room; /* a power of two, or 0 */
    struct ledger_entry *places;
} __attribute__((aligned(64)));

/* One page, wherever the linker puts it: touched with the first entry, like their rooms. */
static struct shard shards[SHARDS] __attribute__((aligned(PAGE)));
_Static_assert(sizeof shards <= PAGE, "one page");

static uint64_t mix(enum ledger_kind kind, uint64_t key) {
    uint64_t hash = (key ^ (uint64_t)kind << 56) * 0x9e3779b97f4a7c15u; /* 2^64 / golden ratio */
    return hash ^ hash >> 29;
}

static struct shard *shard_of(uint64_t hash) { return &shards[hash % SHARDS]; }

static uint32_t home(uint64_t hash, const struct shard *shard) { return (uint32_t)(hash / SHARDS) & (shard->room - 1); }

static struct ledger_entry *after(const struct shard *shard, const struct ledger_entry *place) {
    return &shard->places[(place - shard->places + 1) & (shard->room - 1)];
}

/* Where the key is, or the empty place where it would go. The shard has room. */
static struct ledger_entry *find(const struct shard *shard, enum ledger_kind kind, uint64_t key, uint64_t hash) {
    struct ledger_entry *place = &shard->places[home(hash, shard)];
    while ((place->kind != kind || place->key != key) && place->kind) place = after(shard, place);
    return place;
}

static _Atomic(struct ledger_entry *) first_rooms; /* all shards', never freed */

/* All shards get their first room with the first entry of any, and its pages are touched: otherwise 64 allocations of
 * the program's would each take some memory of the host and a page fault. NULL: there is no memory. */
static struct ledger_entry *first_room(const struct shard *shard) {
    struct ledger_entry *rooms = atomic_load(&first_rooms), *none = NULL;
    if (!rooms) {
        rooms = calloc((size_t)SHARDS * FIRST_ROOM, sizeof *rooms);
        if (!rooms) return NULL;
        volatile char *bytes = (volatile char *)rooms;
        for (size_t at = 0; at < SHARDS * FIRST_ROOM * sizeof *rooms; at += PAGE) bytes[at] = 0;
        if (!atomic_compare_exchange_strong(&first_rooms, &none, rooms)) {
            free(rooms); /* another thread was faster */
            rooms = none;
        }
    }
    return rooms + (shard - shards) * FIRST_ROOM;
}

/* Doubles the room. */
__attribute__((cold, noinline)) static bool widen(struct shard *shard) {
    struct shard wider = {.room = shard->room ? shard->room * 2 : FIRST_ROOM};
    wider.places = shard->room ? calloc(wider.room, sizeof *wider.places) : first_room(shard);
    if (!wider.places) return false;
    for (uint32_t at = 0; at < shard->room; at++) {
        struct ledger_entry entry = shard->places[at];
        if (entry.kind) *find(&wider, entry.kind, entry.key, mix(entry.kind, entry.key)) = entry;
    }
    if (shard->room > FIRST_ROOM) free(shard->places);
    shard->places = wider.places;
    shard->room = wider.room;
    return true;
}

/* How far behind the place that its hash names an entry lies. */
static uint32_t distance(const struct shard *shard, const struct ledger_entry *place) {
    return ((uint32_t)(place - shard->places) - home(mix(place->kind, place->key), shard)) & (shard->room - 1);
}

/* Moves up into the hole what had to go further because of what was there; returns the hole that this leaves. Apart,
 * because few frees need it, and without it the way of all others is short enough to be inlined. */
__attribute__((noinline)) static struct ledger_entry *close_up(const struct shard *shard, struct ledger_entry *hole) {
    uint32_t behind = 1;
    for (struct ledger_entry *place = after(shard, hole); place->kind; place = after(shard, place), behind++) {
        if (distance(shard, place) < behind) continue;
        *hole = *place;
        hole = place;
        behind = 0;
    }
    return hole;
}

static void empty(struct shard *shard, struct ledger_entry *hole) {
    if (after(shard, hole)->kind) hole = close_up(shard, hole);
    hole->kind = 0;
    shard->used--;
}

bool ledger_put(const struct ledger_entry *entry, struct ledger_entry *replaced) {
    uint64_t hash = mix(entry->kind, entry->key);
    struct shard *shard = shard_of(hash);
    latch_take(&shard->latch);
    /* At most three quarters full. */
    bool room = shard->used < shard->room / 4 * 3 || widen(shard);
    replaced->kind = 0;
    if (room) {
        struct ledger_entry *place = find(shard, entry->kind, entry->key, hash);
        if (place->kind)
            *replaced = *place;
        else
            shard->used++;
        *place = *entry;
    }
    latch_drop(&shard->latch);
    return room;
}

static bool look_up(enum ledger_kind kind, uint64_t key, struct ledger_entry *entry, bool take) {
    uint64_t hash = mix(kind, key);
    struct shard *shard = shard_of(hash);
    bool found = false;
    latch_take(&shard->latch);
    if (shard->used) {
        struct ledger_entry *place = find(shard, kind, key, hash);
        if (place->kind) {
            found = true;
            *entry = *place;
            if (take) empty(shard, place);
        }
    }
    latch_drop(&shard->latch);
    return found;
}

bool ledger_take(enum ledger_kind kind, uint64_t key, struct ledger_entry *entry) {
    return look_up(kind, key, entry, true);
}

bool ledger_take_owned(enum ledger_kind kind, uint64_t key, uint64_t owner, struct ledger_entry *entry) {
    uint64_t hash = mix(kind, key);
    struct shard *shard = shard_of(hash);
    bool found = false;
    latch_take(&shard->latch);
    if (shard->used) {
        struct ledger_entry *place = find(shard, kind, key, hash);
        found = place->kind && place->owner == owner;
        if (found) {
            *entry = *place;
            empty(shard, place);
        }
    }
    latch_drop(&shard->latch);
    return found;
}

bool ledger_get(enum ledger_kind kind, uint64_t key, struct ledger_entry *entry) {
    return look_up(kind, key, entry, false);
}

void ledger_sweep(bool (*visit)(const struct ledger_entry *entry, void *context), void *context) {
    for (struct shard *shard = shards; shard < shards + SHARDS; shard++) {
        latch_take(&shard->latch);
        /* From the end: emptying a place moves only entries behind it, which have been visited, or those that
         * wrapped round to the front, which are visited again. */
        for (uint32_t at = shard->room; at-- > 0;)
            while (shard->places[at].kind && visit(&shard->places[at], context)) empty(shard, &shard->places[at]);
        latch_drop(&shard->latch);
    }
}

void ledger_forget(void) {
    for (struct shard *shard = shards; shard < shards + SHARDS; shard++) {
        /* A thread of the parent may have been in the middle of a change: nothing in there can be trusted. */
        *shard = (struct shard){.places = NULL};
    }
    atomic_store(&first_rooms, NULL);
}
FORGET_IN_CHILD(ledger_forget);
