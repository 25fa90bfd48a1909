#include "nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

static struct driver found;

static void find(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
#define FIND(type, name, parameters)                                                                                   \
    if (library == NULL || (*(void **)&found.name = dlsym(library, #name)) == NULL) abort();
    DRIVER_CALLS(FIND)
#undef FIND
}

const struct driver *driver(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find);
    return &found;
}
