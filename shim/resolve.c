/* Finding the real functions, and the `dlsym` that programs see.
 *
 * Nothing happens here before the first call: no constructor, and nothing in `dlsym` but a look at the name unless it
 * is one of the table's. */
#define _GNU_SOURCE
#include "elf.h"
#include "hooks.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

enum library { CUDA, NVML };

static const struct call {
    const char *name;
    void *wrapper; /* NULL: not intercepted */
    enum library library;
} calls[CALL_COUNT] = {
#define LINE(library, name, parameters) [HOOK_##name] = {#name, (void *)name, library},
    HOOKS(LINE)
#undef LINE
#define LINE(library, name, parameters) [HOOK_##name] = {#name, NULL, library},
        USED(LINE)
#undef LINE
};

_Atomic(void *) real_address[CALL_COUNT];

typedef void *dlsym_function(void *handle, const char *name);

/* glibc has it; musl does not, and then this is NULL. */
__attribute__((weak)) void *dlvsym(void *restrict handle, const char *restrict name, const char *restrict version);

__attribute__((visibility("hidden"))) dlsym_function *gpushare_next_dlsym;
__attribute__((visibility("hidden"))) void *gpushare_route(void *handle, const char *name);

/* Our own, whoever else's comes first. */
__attribute__((visibility("hidden"))) dlsym_function gpushare_dlsym;

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

static dlsym_function *next_dlsym(void) {
    dlsym_function *found = __atomic_load_n(&gpushare_next_dlsym, __ATOMIC_ACQUIRE);
    if (found) return found;
    if (dlvsym) found = (dlsym_function *)dlvsym(RTLD_NEXT, "dlsym", FIRST_GLIBC);
    if (!found && dlvsym) found = (dlsym_function *)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!found) found = (dlsym_function *)elf_find("dlsym", (void *)gpushare_dlsym);
    if (!found) found = no_dlsym;
    __atomic_store_n(&gpushare_next_dlsym, found, __ATOMIC_RELEASE);
    return found;
}

static int not_there_cuda(void) { return CUDA_ERROR_NOT_SUPPORTED; }
static int not_there_nvml(void) { return NVML_ERROR_FUNCTION_NOT_FOUND; }

void *real_find(enum hook hook) {
    static const char *const names[] = {[CUDA] = "libcuda.so.1", [NVML] = "libnvidia-ml.so.1"};
    enum library library = calls[hook].library;
    void *handle = dlopen(names[library], RTLD_LAZY);
    void *address = handle ? next_dlsym()(handle, calls[hook].name) : NULL;
    if (!address) address = library == CUDA ? (void *)not_there_cuda : (void *)not_there_nvml;
    atomic_store_explicit(&real_address[hook], address, memory_order_release);
    return address;
}

int real_exists(enum hook hook) {
    void *address = real_function(hook);
    return address != (void *)not_there_cuda && address != (void *)not_there_nvml;
}

void *wrapper_of(const void *real) {
    for (enum hook hook = 0; hook < HOOK_COUNT; hook++)
        if (calls[hook].library == CUDA && real_function(hook) == real && real_exists(hook)) return calls[hook].wrapper;
    return NULL;
}

/* What `dlsym` should return at once, or NULL to go on to the real one.
 *
 * Only exact names count: cuDNN's and cuBLAS's begin with "cu" too. A name is replaced only where the real one exists,
 * so a program that asks what the driver can do gets the truth. RTLD_DEFAULT finds our own symbol by itself; for
 * RTLD_NEXT the answer is ours too, whoever asks: ours never call on along the chain, but the driver directly. */
void *gpushare_route(void *handle, const char *name) {
    dlsym_function *next = next_dlsym();
    if (handle == RTLD_DEFAULT || !name || (strncmp(name, "cu", 2) != 0 && strncmp(name, "nvml", 4) != 0)) return NULL;
    for (enum hook hook = 0; hook < HOOK_COUNT; hook++) {
        if (strcmp(name, calls[hook].name) != 0) continue;
        return next(handle, name) ? calls[hook].wrapper : NULL;
    }
    return NULL;
}

/* A jump, not a call: the real dlsym looks at its return address to know what RTLD_NEXT and RTLD_DEFAULT mean. */
#if defined(__x86_64__)
__asm__(".text\n"
        ".globl dlsym\n"
        ".type dlsym, @function\n"
        "dlsym:\n"
        ".cfi_startproc\n"
        "    endbr64\n"
        "    pushq %rdi\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    pushq %rsi\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    subq $8, %rsp\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    call gpushare_route\n"
        "    addq $8, %rsp\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    popq %rsi\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    popq %rdi\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    testq %rax, %rax\n"
        "    jnz 1f\n"
        "    jmpq *gpushare_next_dlsym(%rip)\n"
        "1:  ret\n"
        ".cfi_endproc\n"
        ".size dlsym, . - dlsym\n"
        ".hidden gpushare_dlsym\n"
        ".globl gpushare_dlsym\n"
        ".set gpushare_dlsym, dlsym\n");
#else
__asm__(".text\n"
        ".globl dlsym\n"
        ".type dlsym, %function\n"
        "dlsym:\n"
        ".cfi_startproc\n"
        "    stp x29, x30, [sp, -32]!\n"
        "    .cfi_adjust_cfa_offset 32\n"
        "    mov x29, sp\n"
        "    stp x0, x1, [sp, 16]\n"
        "    bl gpushare_route\n"
        "    mov x9, x0\n"
        "    ldp x0, x1, [sp, 16]\n"
        "    ldp x29, x30, [sp], 32\n"
        "    .cfi_adjust_cfa_offset -32\n"
        "    cbnz x9, 1f\n"
        "    adrp x9, gpushare_next_dlsym\n"
        "    ldr x9, [x9, :lo12:gpushare_next_dlsym]\n"
        "    br x9\n"
        "1:  mov x0, x9\n"
        "    ret\n"
        ".cfi_endproc\n"
        ".size dlsym, . - dlsym\n"
        ".hidden gpushare_dlsym\n"
        ".globl gpushare_dlsym\n"
        ".set gpushare_dlsym, dlsym\n");
#endif
