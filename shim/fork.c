#include "fork.h"

#include <stdatomic.h>
#include <stddef.h>

/* glibc's, also behind pthread_atfork; musl has the other. Neither is needed to load. */
__attribute__((weak)) int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *);
__attribute__((weak)) int pthread_atfork(void (*)(void), void (*)(void), void (*)(void));

/* Where the linker puts the section. */
extern __attribute__((visibility("hidden"))) void (*const __start_forgetting[])(void);
extern __attribute__((visibility("hidden"))) void (*const __stop_forgetting[])(void);

static void forget_all(void) {
    for (void (*const *forget)(void) = __start_forgetting; forget < __stop_forgetting; forget++) (*forget)();
}

void fork_watch(void) {
    static atomic_flag done = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&done)) return;
    if (__register_atfork)
        __register_atfork(NULL, NULL, forget_all, NULL);
    else if (pthread_atfork)
        pthread_atfork(NULL, NULL, forget_all);
}
