/* What a pool is charged: what the driver has reserved for it, and before that what it may grow by. */
#include "growth.h"

#include "charge.h"
#include "devices.h"
#include "resolve.h"

#define UNIT 512     /* what a pool hands out is a multiple of this */
#define MOST_TURNS 3 /* of an allocation that is undone since the pool grew by more than was foreseen */

/* What this thread knows about the pool that it used last: a free piece of so many bytes, for allocations on `stream`.
 * It holds as long as the pool's last `visit` is this thread's and no other thread is in a call: each that allocates
 * from the pool is counted in `calls` and makes the visit its own before it calls the driver, and notes after that if
 * another has come meanwhile: then no thread knows anything. Nor does one while more is on the card than is charged:
 * what fits may lie in a piece that is about to be undone.
 */
static _Thread_local struct {
    uint64_t visit;
    CUstream stream;
    uint64_t bytes;
    uint64_t unchecked; /* bytes taken from any pool since this thread last looked at one */
} mine;

static _Atomic uint64_t visits; /* how many have begun: each is one thread's, to one pool */

static inline bool visiting(const struct pool *pool) { return atomic_load(&pool->visit) == mine.visit; }

static inline void nobody_knows(struct pool *pool) { atomic_store(&pool->visit, NO_VISIT); }

/* What the driver has reserved for it, under `lock`. Of a pool that the program destroys, or has destroyed, the driver
 * tells nothing any more: it counts in full until its last allocation is freed, with what was `paid` for growth that
 * may have come. */
static uint64_t ask(struct pool *pool, uint64_t paid) {
    uint64_t reserved = atomic_load(&pool->reserved);
    bool dead = atomic_load(&pool->dead);
    CUresult result;
    if (dead && !atomic_load(&pool->live)) return 0;
    if (dead || atomic_load(&pool->leaving)) return paid > reserved ? paid : reserved;
    if (pool->handle)
        result = REAL(cuMemPoolGetAttribute)(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
    else
        result = REAL(cuDeviceGetGraphMemAttribute)(pool->device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved);
    return result == CUDA_SUCCESS ? reserved : atomic_load(&pool->reserved);
}

/* Brings the charge to what is reserved; `finished` of what was pending is no longer so, and has not come unless
 * `made`. The charge stays above that for growth which is pending: whether that has happened already is not known.
 * False: the lease has too little for what is on the card. */
__attribute__((cold, noinline)) static bool settle(struct pool *pool, uint64_t finished, bool made) {
    uint64_t surplus = 0;
    bool covered = true;
    lock_take(&pool->lock);
    uint64_t paid = pool->charged - pool->pending + (made ? finished : 0);
    pool->pending -= finished;
    /* What the last thread knows may be in a piece that is gone. Before the driver is asked, so that its allocation is
     * seen here, or this by it. */
    if (!visiting(pool)) nobody_knows(pool);
    uint64_t reserved = ask(pool, paid);
    if (reserved < atomic_load(&pool->reserved)) mine.bytes = 0;
    if (pool->charged < reserved) {
        covered = charge_within(pool->slot, reserved - pool->charged);
        if (covered)
            pool->charged = reserved;
        else
            nobody_knows(pool);
    } else if (pool->charged > reserved + pool->pending) {
        surplus = pool->charged - reserved - pool->pending;
        pool->charged -= surplus;
    }
    atomic_store_explicit(&pool->reserved, reserved, memory_order_relaxed);
    mine.unchecked = 0;
    lock_drop(&pool->lock);
    if (surplus) charge_give(pool->slot, surplus);
    return covered;
}

static uint64_t in_pieces(uint64_t bytes) {
    return bytes > UINT64_MAX - POOL_PIECE ? UINT64_MAX : (bytes + POOL_PIECE - 1) & ~(POOL_PIECE - 1);
}

/* Notes what was taken from the lease for growth. */
static void expect(struct pool *pool, uint64_t bytes, struct growth *growth) {
    growth->bytes = bytes;
    lock_take(&pool->lock);
    pool->charged += bytes;
    pool->pending += bytes;
    lock_drop(&pool->lock);
}

static bool expect_within(struct pool *pool, uint64_t bytes, struct growth *growth) {
    if (!charge_within(pool->slot, bytes)) return false;
    expect(pool, bytes, growth);
    return true;
}

static CUresult expect_waiting(struct pool *pool, uint64_t bytes, struct growth *growth) {
    growth->waited = true;
    CUresult result = charge_take(pool->slot, bytes, WIRE_FOR_MEMORY);
    if (result == CUDA_SUCCESS) expect(pool, bytes, growth);
    return result;
}

/* Growth of another thread's is under way, which may leave room for this one. */
static bool others_grow(struct pool *pool) {
    lock_take(&pool->lock);
    bool grow = pool->pending > 0;
    lock_drop(&pool->lock);
    return grow;
}

__attribute__((cold, noinline)) static void begin_visit(struct pool *pool) {
    atomic_fetch_add(&pool->calls, 1);
    if (visiting(pool)) return;
    mine.visit = atomic_fetch_add(&visits, 1) + 1;
    mine.bytes = 0;
    atomic_store(&pool->visit, mine.visit);
}

/* Counts the call, if nobody else's is under way and what this thread knows holds. Both are looked at once it is
 * counted: until then another may have come. */
static inline bool begin_alone(struct pool *pool) {
    atomic_fetch_add(&pool->calls, 1);
    if (visiting(pool) && atomic_load(&pool->calls) == 1) return true;
    atomic_fetch_sub(&pool->calls, 1);
    return false;
}

/* Each of several contexts has a stream of this name: what was freed on one is not known to be free on another. (The
 * contexts of several GPUs count as one: a program frees what a pool has where the pool is.) */
static inline bool one_stream(CUstream stream) {
    return (uintptr_t)stream > LAST_SPECIAL_STREAM ||
           !atomic_load_explicit(&devices_now.several_contexts, memory_order_relaxed);
}

/* Begins an allocation that is certain to fit, as growth.h describes. A pool with pieces of another size than usual has
 * been made on a card that was nearly full: nothing is certain there. */
static inline bool begin_certain(struct pool *pool, uint64_t bytes, CUstream stream) {
    if (!visiting(pool)) return false;
    bool fits = bytes <= mine.bytes && mine.stream == stream && one_stream(stream) &&
                atomic_load_explicit(&pool->reserved, memory_order_relaxed) % POOL_PIECE == 0;
    /* The driver may have given the piece back unseen, at a synchronise, and charged it still is: then this allocation
     * brings whole POOL_PIECEs of that back, and what is left of them is what is free for certain. */
    uint64_t left = bytes < mine.bytes ? mine.bytes - bytes : 0, again = -bytes % POOL_PIECE;
    mine.bytes = left < again ? left : again;
    return fits && begin_alone(pool);
}

static bool sum_fits(struct pool *pool, const struct growth *growth) {
    return atomic_load(&pool->live) + growth->live <= atomic_load(&pool->reserved);
}

__attribute__((cold, noinline)) static CUresult expect_unsure(struct pool *pool, struct growth *growth) {
    uint64_t most = in_pieces(growth->live);
    if (!growth->turns && !sum_fits(pool, growth)) settle(pool, 0, true);
    if (!growth->turns && sum_fits(pool, growth)) {
        growth->tried = !expect_within(pool, most, growth);
        return CUDA_SUCCESS;
    }
    /* The driver may add to the free piece at the end of what it has (an H100 with driver 580: 20 and then 40 MiB take
     * 64): that much is asked for where the quota has no room for all. */
    uint64_t sum = atomic_load(&pool->live) + growth->live, reserved = atomic_load(&pool->reserved);
    if (!growth->turns && charge_claim(pool->slot) < most && sum > reserved) {
        uint64_t least = in_pieces(sum - reserved);
        if (least < most) most = least;
    }
    CUresult result = expect_waiting(pool, most, growth);
    if (result != CUDA_ERROR_OUT_OF_MEMORY || growth->turns) return result;
    /* What another thread's growth has brought meanwhile, or is about to bring, may be enough for both. */
    bool others = others_grow(pool);
    settle(pool, 0, true);
    growth->tried = others || sum_fits(pool, growth);
    return growth->tried ? CUDA_SUCCESS : result;
}

__attribute__((cold, noinline)) static CUresult begin_unsure(struct pool *pool, struct growth *growth) {
    CUresult result = expect_unsure(pool, growth);
    if (result != CUDA_SUCCESS) return result;
    growth->check = true;
    begin_visit(pool);
    return CUDA_SUCCESS;
}

CUresult pool_begin(struct pool *pool, uint64_t bytes, CUstream stream, struct growth *growth) {
    growth->live = (bytes + UNIT - 1) & ~(uint64_t)(UNIT - 1);
    growth->bytes = 0;
    growth->tried = growth->waited = false;
    if (bytes > INT64_MAX) return CUDA_ERROR_OUT_OF_MEMORY;
    mine.unchecked += growth->live;
    if (!begin_certain(pool, growth->live, stream)) return begin_unsure(pool, growth);
    growth->check = mine.unchecked >= CHECK_EVERY || charge_pressure(pool->slot);
    return CUDA_SUCCESS;
}

static CUresult expect_graph(struct pool *pool, uint64_t bytes, struct growth *growth) {
    uint64_t used = 0;
    settle(pool, 0, true);
    uint64_t reserved = atomic_load(&pool->reserved);
    /* What is idle may be in pieces that do not fit. */
    if (expect_within(pool, in_pieces(bytes), growth)) return CUDA_SUCCESS;
    REAL(cuDeviceGetGraphMemAttribute)(pool->device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used);
    uint64_t idle = reserved > used ? reserved - used : 0;
    return bytes > idle ? expect_waiting(pool, in_pieces(bytes - idle), growth) : CUDA_SUCCESS;
}

CUresult pool_begin_graph(struct pool *pool, uint64_t bytes, struct growth *growth) {
    *growth = (struct growth){.check = true};
    CUresult result = expect_graph(pool, bytes, growth);
    if (result == CUDA_SUCCESS) atomic_fetch_add(&pool->calls, 1);
    return result;
}

bool pool_end(struct pool *pool, struct growth *growth, bool succeeded) {
    if (succeeded) atomic_fetch_add_explicit(&pool->live, growth->live, memory_order_relaxed);
    if (!visiting(pool)) {
        /* Another thread has come meanwhile: neither knows what the other one's allocation has left. */
        nobody_knows(pool);
        growth->check = true;
    }
    bool covered = growth->check ? settle(pool, growth->bytes, succeeded) : true;
    atomic_fetch_sub(&pool->calls, 1);
    return covered;
}

bool pool_again(struct growth *growth, CUresult result) {
    if (result == POOL_IS_ANOTHER) return true;
    bool unmet = growth->tried ? result == CUDA_ERROR_OUT_OF_MEMORY || result == CUDA_SUCCESS : result == CUDA_SUCCESS;
    return unmet && growth->turns++ < MOST_TURNS;
}

uint64_t pool_charged(struct pool *pool) {
    lock_take(&pool->lock);
    uint64_t charged = pool->charged;
    lock_drop(&pool->lock);
    return charged;
}

void pool_freed(struct pool *pool, uint64_t bytes, CUstream stream) {
    atomic_fetch_sub_explicit(&pool->live, bytes, memory_order_relaxed);
    if (visiting(pool) && (mine.stream != stream || mine.bytes < bytes)) {
        mine.stream = stream;
        mine.bytes = bytes;
    }
    if (charge_pressure(pool->slot) || atomic_load_explicit(&pool->dead, memory_order_relaxed)) settle(pool, 0, true);
}

bool pool_look(struct pool *pool) { return pool->slot == NO_SLOT || settle(pool, 0, true); }
