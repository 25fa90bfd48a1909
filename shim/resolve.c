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

static int not_there_nccl(void) { return ncclSystemError; }

static const struct {
    const char *name;
    int (*not_there)(void);
} libraries[] = {
    [CUDA] = {"libcuda.so.1", not_there_cuda},
    [NVML] = {"libnvidia-ml.so.1", not_there_nvml},
    [NCCL] = {"libnccl.so.2", not_there_nccl},
};

/* A function of the NCCL that the wrappers stand for. */
static _Atomic(void *) nccl;

bool real_nccl(const char *name, void *address) {
    void *none = NULL;
    if (atomic_compare_exchange_strong(&nccl, &none, address)) return true;
    return elf_find_beside(name, none) == address;
}

/* It is never loaded for the program, which may have it in a library of another name. */
static void *find_nccl(const char *name) {
    void *known = atomic_load(&nccl);
    if (known) return elf_find_beside(name, known);
    void *handle = dlopen(libraries[NCCL].name, RTLD_LAZY | RTLD_NOLOAD);
    void *address = handle ? real_dlsym()(handle, name) : elf_find(name);
    if (address) atomic_compare_exchange_strong(&nccl, &known, address);
    return address;
}

bool real_loaded(enum hook hook) {
    void *handle = dlopen(libraries[calls[hook].library].name, RTLD_LAZY | RTLD_NOLOAD);
    bool loaded = handle && real_dlsym()(handle, calls[hook].name);
    if (handle) dlclose(handle);
    return loaded;
}

static void *find(enum library library, const char *name) {
    if (library == NCCL) return find_nccl(name);
    void *handle = dlopen(libraries[library].name, RTLD_LAZY);
    return handle ? real_dlsym()(handle, name) : NULL;
}

void *real_find(enum hook hook) {
    enum library library = calls[hook].library;
    void *address = find(library, calls[hook].name);
    if (!address) address = (void *)libraries[library].not_there;
    atomic_store_explicit(&real_address[hook], address, memory_order_release);
    return address;
}

bool real_exists(enum hook hook) { return real_function(hook) != (void *)libraries[calls[hook].library].not_there; }
