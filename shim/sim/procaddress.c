/* cuGetProcAddress: which function a name means depends on the CUDA version that the program was built for and on the
 * default stream that it wants. Two versions of itself: the first has no status to report. */
#include "driver.h"

#include <string.h>

/* Here the entry points are names with an address and no types: under names of their own. */
#define CALL(name, version, symbol) void entry_##symbol(void) __asm__(#symbol);
#define TWIN(name, version, symbol, per_thread)                                                                        \
    CALL(name, version, symbol)                                                                                        \
    CALL(name, version, per_thread)
#include "calls.h"
#undef CALL
#undef TWIN

/* By name, then by version. */
static const struct call {
    const char *name;
    int version; /* the CUDA version that brought this form */
    void (*function)(void), (*per_thread)(void);
} calls[] = {
#define CALL(name, version, symbol) {#name, version, entry_##symbol, entry_##symbol},
#define TWIN(name, version, symbol, per_thread) {#name, version, entry_##symbol, entry_##per_thread},
#include "calls.h"
};
static const size_t call_count = sizeof calls / sizeof *calls;

enum { FOUND = 0, NO_SUCH_NAME = 1, VERSION_TOO_OLD = 2 };
enum { DEFAULT = 0, LEGACY_STREAM = 1, PER_THREAD_STREAM = 2 };

static CUresult find(const char *name, void **function, int version, uint64_t flags, int *status) {
    if (name == NULL || function == NULL || flags > PER_THREAD_STREAM || version > SIM_CUDA_VERSION)
        return CUDA_ERROR_INVALID_VALUE;
    *function = NULL;
    *status = NO_SUCH_NAME;
    for (size_t i = 0; i < call_count; i++) {
        if (strcmp(calls[i].name, name) != 0) continue;
        if (calls[i].version > version) {
            if (*status == NO_SUCH_NAME) *status = VERSION_TOO_OLD;
            continue;
        }
        *function = (void *)(flags == PER_THREAD_STREAM ? calls[i].per_thread : calls[i].function);
        *status = FOUND;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    ENTERED();
    int status;
    CUresult result = find(name, function, version, flags, &status);
    return result == CUDA_SUCCESS && status != FOUND ? CUDA_ERROR_NOT_FOUND : result;
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    ENTERED();
    int found;
    REQUIRE(find(name, function, version, flags, &found));
    if (status != NULL) *status = found;
    return found == FOUND || status != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* The driver's private tables, which nothing documents: this card has none. */
EXPORT CUresult cuGetExportTable(const void **table, const uint8_t *id) {
    ENTERED();
    if (table == NULL || id == NULL) return CUDA_ERROR_INVALID_VALUE;
    *table = NULL;
    return CUDA_ERROR_NOT_FOUND;
}

/* ---- for tests ---- */

extern struct entry __start_sim_entries[], __stop_sim_entries[];

/* How often an entry point was entered, under whichever of its names; 0 if it never was. */
EXPORT uint64_t sim_calls(const char *name) {
    uint64_t calls = 0;
    for (const struct entry *entry = __start_sim_entries; entry < __stop_sim_entries; entry++)
        if (strcmp(entry->name, name) == 0) calls += atomic_load(&entry->calls);
    return calls;
}

/* All entries together. */
EXPORT uint64_t sim_all_calls(void) {
    uint64_t calls = 0;
    for (const struct entry *entry = __start_sim_entries; entry < __stop_sim_entries; entry++)
        calls += atomic_load(&entry->calls);
    return calls;
}
