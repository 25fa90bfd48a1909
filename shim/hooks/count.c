/* Only in the counting build, which is for measurements: how often any intercepted call was entered. The compiler calls
 * this at the beginning of every function of hooks_*.c. */
#include "hooks.h"

#include <stdatomic.h>

static _Atomic unsigned long long entered;

__attribute__((visibility("default"))) unsigned long long gpushare_intercepted(void);
unsigned long long gpushare_intercepted(void) { return atomic_load(&entered); }

static const void *const wrappers[] = {
#define LINE(library, name, parameters) (const void *)name,
    HOOKS(LINE)
#undef LINE
};

__attribute__((no_instrument_function)) void __cyg_profile_func_enter(void *function, void *caller);
__attribute__((no_instrument_function)) void __cyg_profile_func_exit(void *function, void *caller);

void __cyg_profile_func_enter(void *function, void *caller) {
    (void)caller;
    for (unsigned at = 0; at < sizeof wrappers / sizeof *wrappers; at++)
        if (wrappers[at] == function) atomic_fetch_add(&entered, 1);
}

void __cyg_profile_func_exit(void *function, void *caller) { (void)function, (void)caller; }
