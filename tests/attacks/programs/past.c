/* A program that takes memory of the card past the shim, says when it holds it, and keeps it.
 *
 *   past WAY BYTES
 *
 * `here`: by dlopen and dlsym as they come: past the shim only where that is not loaded. `apart`: in a link namespace
 * of its own, where no preloaded library is; `both`: so too, but after an honest allocation. As a library it also
 * serves as LD_AUDIT, which the loader puts into such a namespace by itself. Built with -DSTATIC, as a static program
 * that speaks the simulated card's own interface. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void hold(uint64_t bytes) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    printf("holds %llu at %lld.%06ld\n", (unsigned long long)bytes, (long long)now.tv_sec, now.tv_nsec / 1000);
    fflush(stdout);
    for (;;) pause();
}

static void fail(const char *what, long code) {
    printf("%s: %ld\n", what, code);
    fflush(stdout);
    _exit(1);
}

#ifdef STATIC
#include "processes.h"
#include "units.h"

void take(uint64_t bytes) {
    uint64_t units = bytes / CARD_UNIT;
    uint32_t *taken = calloc(units, sizeof *taken);
    if (card_open() == NULL || !card_join()) fail("no card", 0);
    if (!card_take(0, units, taken)) fail("the card has less", (long)card_free(0));
    hold(bytes);
}
#else
#define PIECE (64ull << 20)

static void *find(void *driver, const char *name) {
    void *address = dlsym(driver, name);
    if (address == NULL) fail(name, -1);
    return address;
}

/* In pieces, until the card has no more; how much it got. */
static uint64_t allocate(uint64_t bytes) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) fail(dlerror(), -1);
    int (*init)(unsigned) = (int (*)(unsigned))find(driver, "cuInit");
    int (*retain)(void **, int) = (int (*)(void **, int))find(driver, "cuDevicePrimaryCtxRetain");
    int (*current)(void *) = (int (*)(void *))find(driver, "cuCtxSetCurrent");
    int (*piece)(uint64_t *, size_t) = (int (*)(uint64_t *, size_t))find(driver, "cuMemAlloc_v2");
    void *context = NULL;
    int code = init(0);
    if (code == 0) code = retain(&context, 0);
    if (code == 0) code = current(context);
    if (code != 0) fail("no context", code);
    uint64_t held = 0, address;
    while (held < bytes && piece(&address, PIECE) == 0) held += PIECE;
    return held;
}

__attribute__((visibility("default"))) void take(uint64_t bytes) {
    uint64_t held = allocate(bytes);
    if (held < bytes) fail("got less", (long)held);
    hold(held);
}

/* What rtld-audit(7) asks of a library; whoever names it in LD_AUDIT has PAST_BYTES taken before `main`. */
__attribute__((visibility("default"))) unsigned la_version(unsigned version) { return version; }
__attribute__((visibility("default"))) void la_preinit(uintptr_t *cookie) {
    (void)cookie;
    const char *bytes = getenv("PAST_BYTES");
    if (bytes != NULL) take(strtoull(bytes, NULL, 10));
}

static void take_apart(uint64_t bytes) {
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 4);
    if (length < 0) fail("who am I", length);
    strcpy(path + length, ".so");
    void *library = dlmopen(LM_ID_NEWLM, path, RTLD_NOW);
    if (library == NULL) fail(dlerror(), -1);
    ((void (*)(uint64_t))find(library, "take"))(bytes);
}
#endif

int main(int count, char **words) {
    if (count != 3) return 64;
    uint64_t bytes = strtoull(words[2], NULL, 10);
#ifndef STATIC
    if (strcmp(words[1], "both") == 0 && allocate(PIECE) < PIECE) fail("no honest piece", 0);
    if (strcmp(words[1], "here") != 0) take_apart(bytes);
#endif
    take(bytes);
    return 0;
}
