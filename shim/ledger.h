/* What this process holds: handle → what was charged for it. Knows no CUDA.
 *
 * Sharded, so that threads do not meet; a lock is held for a few instructions only, never across a driver call. An
 * entry is taken out *before* the real free and put back if that fails: otherwise another thread could be given the
 * same address in between, and its entry would be the one that is removed.
 */
#ifndef GPUSHARE_LEDGER_H
#define GPUSHARE_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

/* Handles of different kinds are different even if their numbers are equal. */
enum ledger_kind {
    LEDGER_POINTER = 1, /* device address; owner: as in struct place, or the struct pool if `pooled` */
    LEDGER_ARRAY,       /* array or mipmapped array; owner: as in struct place */
    LEDGER_CONTEXT,     /* context made by cuCtxCreate; owner: its number */
    LEDGER_POOL,        /* memory pool; owner: struct pool */
    LEDGER_HANDLE,      /* physical memory of cuMemCreate; owner: struct physical, bytes: references */
    LEDGER_MAPPING,     /* address that physical memory is mapped at; owner: struct physical, bytes: length */
    LEDGER_TILE, /* part of an array that physical memory is mapped into; owner: struct physical, bytes: the array */
    LEDGER_EXEC, /* graph that takes memory when it runs; bytes: how much */
};

struct ledger_entry {
    uint64_t key;
    uint64_t bytes;
    uint64_t owner;
    enum ledger_kind kind; /* a whole word: read back from single bytes, it would wait for every store before it */
    uint8_t slot;
    bool pooled;
};

/* Adds an entry (by its address: copied before the ledger's atomic, it would be read back from stores that are still
 * under way, and wait for them). An entry that was there under the same key is handed back in `replaced` (kind 0: there
 * was none): what it stood for is gone, or the driver would not have given out its address again. False: no host
 * memory. */
bool ledger_put(const struct ledger_entry *entry, struct ledger_entry *replaced);

/* Takes an entry out. False: there is none. */
bool ledger_take(enum ledger_kind kind, uint64_t key, struct ledger_entry *entry);

/* The same, only if the entry is of that owner: its handle may have been given out again meanwhile. */
bool ledger_take_owned(enum ledger_kind kind, uint64_t key, uint64_t owner, struct ledger_entry *entry);

bool ledger_get(enum ledger_kind kind, uint64_t key, struct ledger_entry *entry);

/* Calls `visit` for every entry, under its shard's lock; takes out those for which it returns true. */
void ledger_sweep(bool (*visit)(const struct ledger_entry *entry, void *context), void *context);

/* In a forked child: what is held is the parent's. */
void ledger_forget(void);

#endif
