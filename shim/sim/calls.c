/* The table of entry points, in a file of its own: here they are names with an address and no types. */
#include "driver.h"

#define CALL(name, version, symbol) void symbol(void);
#define TWIN(name, version, symbol, per_thread)                                                                        \
    void symbol(void);                                                                                                 \
    void per_thread(void);
#include "calls.h"
#undef CALL
#undef TWIN

const struct call calls[] = {
#define CALL(name, version, symbol) {#name, version, symbol, symbol},
#define TWIN(name, version, symbol, per_thread) {#name, version, symbol, per_thread},
#include "calls.h"
};
const size_t call_count = sizeof calls / sizeof *calls;
