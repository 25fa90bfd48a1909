#include "driver.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define DEFINE(name, arguments) CUresult(*name) arguments;
DRIVER(DEFINE)

double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static double begun;

void say_from_here(void) { begun = now(); }

void say(const char *format, ...) {
    va_list values;
    va_start(values, format);
    printf("%9.4f  ", now() - begun);
    vprintf(format, values);
    putchar('\n');
    fflush(stdout); /* a watcher reads these lines as they come */
    va_end(values);
}

void must(CUresult result, const char *what) {
    if (result == CUDA_SUCCESS) return;
    const char *name = NULL;
    if (cuGetErrorName != NULL) cuGetErrorName(result, &name);
    say("%s: %s", what, name != NULL ? name : "failed");
    exit(result == CUDA_ERROR_OUT_OF_MEMORY ? EXIT_MEMORY : EXIT_WRONG);
}

void load_driver(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) {
        say("no CUDA driver here: %s", dlerror());
        exit(EXIT_WRONG);
    }
#define FIND(call, arguments)                                                                                          \
    *(void **)&call = dlsym(driver, #call);                                                                            \
    if (call == NULL) {                                                                                                \
        say("this CUDA driver is too old: it has no " #call);                                                          \
        exit(EXIT_WRONG);                                                                                              \
    }
    DRIVER(FIND)
}
