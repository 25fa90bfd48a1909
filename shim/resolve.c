#define _GNU_SOURCE
#include "resolve.h"

#include "elf.h"

#include <dlfcn.h>
#include <stddef.h>

const struct call calls[CALL_COUNT] = {
#define LINE(library, name, parameters) [HOOK_##name] = {#name, library},
    HOOKS(LINE) USED(LINE)
#undef LINE
};

_Atomic(void *) real_address[CALL_COUNT];

/* glibc has it; musl does not, and then this is NULL. */
__attribute__((weak)) void *dlvsym(void *restrict handle, const char *restrict name, const char *restrict version);

dlsym_function *gpushare_next_dlsym;

static void *no_dlsym(void *handle, const char *name) {
    (void)handle, (void)name;
    return NULL;
}

#if defined(__x86_64__)
#define FIRST_GLIBC "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define FIRST_GLIBC "GLIBC_2.17"
#else
#error "the shim's dlsym is written for x86-64 and aarch64"
#endif

dlsym_function *real_dlsym(void) {
    dlsym_function *found = __atomic_load_n(&gpushare_next_dlsym, __ATOMIC_ACQUIRE);
    if (found) return found;
    if (dlvsym) found = (dlsym_function *)dlvsym(RTLD_NEXT, "dlsym", FIRST_GLIBC);
    if (!found && dlvsym) found = (dlsym_function *)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!found) found = (dlsym_function *)elf_find("dlsym");
    if (!found) found = no_dlsym;
    __atomic_store_n(&gpushare_next_dlsym, found, __ATOMIC_RELEASE);
    return found;
}

static int not_there_cuda(void) { return CUDA_ERROR_NOT_SUPPORTED; }
static int not_there_nvml(void) { return NVML_ERROR_FUNCTION_NOT_FOUND; }

static const char *const names[] = {[CUDA] = "libcuda.so.1", [NVML] = "libnvidia-ml.so.1"};

bool real_loaded(enum hook hook) {
    void *handle = dlopen(names[calls[hook].library], RTLD_LAZY | RTLD_NOLOAD);
    bool loaded = handle && real_dlsym()(handle, calls[hook].name);
    if (handle) dlclose(handle);
    return loaded;
}

void *real_find(enum hook hook) {
    enum library library = calls[hook].library;
    void *handle = dlopen(names[library], RTLD_LAZY);
    void *address = handle ? real_dlsym()(handle, calls[hook].name) : NULL;
    if (!address) address = library == CUDA ? (void *)not_there_cuda : (void *)not_there_nvml;
    atomic_store_explicit(&real_address[hook], address, memory_order_release);
    return address;
}

bool real_exists(enum hook hook) {
    void *address = real_function(hook);
    return address != (void *)not_there_cuda && address != (void *)not_there_nvml;
}
