/* The ways by which programs get at the driver: the `dlsym` that they see, and cuGetProcAddress, which every CUDA 11.3
 * and newer runtime uses.
 *
 * Nothing happens here before the first call: no constructor, and nothing in `dlsym` but a look at the name unless it
 * is one of the table's. */
#define _GNU_SOURCE
#include "gate/communicators.h"
#include "hooks.h"
#include "resolve.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

static void *const wrappers[HOOK_COUNT] = {
#define LINE(library, name, parameters) [HOOK_##name] = (void *)name,
    HOOKS(LINE)
#undef LINE
};

/* ---- dlsym ---- */

/* Whether the wrapper stands for this function: of NCCL there may be another one in the program. */
static bool stands_for(enum hook hook, void *real) {
    if (calls[hook].library != NCCL || real == wrappers[hook] || real_nccl(calls[hook].name, real)) return true;
    struct gate *gate = gate_here();
    if (gate) gate_unsee(gate, GATE_UNSEEN_SECOND);
    return false;
}

/* What `dlsym` should return at once, or NULL to go on to the real one.
 *
 * Only exact names count: cuDNN's and cuBLAS's begin with "cu" too. A name is replaced only where the real one exists,
 * so a program that asks what the driver can do gets the truth. RTLD_DEFAULT finds our own symbol by itself; for
 * RTLD_NEXT the answer is ours too, whoever asks: ours never call on along the chain, but the driver directly. What is
 * next of a library that was loaded RTLD_LOCAL, only the real dlsym knows, by its return address: there the answer is
 * ours wherever the driver is loaded. */
__attribute__((visibility("hidden"))) void *gpushare_route(void *handle, const char *name);
void *gpushare_route(void *handle, const char *name) {
    dlsym_function *next = real_dlsym();
    if (handle == RTLD_DEFAULT || !name) return NULL;
    if (strncmp(name, "cu", 2) != 0 && strncmp(name, "nvml", 4) != 0 && strncmp(name, "nccl", 4) != 0) return NULL;
    for (enum hook hook = 0; hook < HOOK_COUNT; hook++) {
        if (strcmp(name, calls[hook].name) != 0) continue;
        void *real = next(handle, name);
        if (real) return stands_for(hook, real) ? wrappers[hook] : NULL;
        return handle == RTLD_NEXT && real_loaded(hook) ? wrappers[hook] : NULL;
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
        ".size dlsym, . - dlsym\n");
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
        ".size dlsym, . - dlsym\n");
#endif

/* ---- cuGetProcAddress ---- */

/* What to hand out instead of a real function of the driver, or NULL if that one is not intercepted. */
static void *wrapper_of(const void *real) {
    for (enum hook hook = 0; hook < HOOK_COUNT; hook++)
        if (calls[hook].library == CUDA && real_function(hook) == real && real_exists(hook)) return wrappers[hook];
    return NULL;
}

/* The real one is called first, and what it returned is replaced by *address*: whatever version and stream flags were
 * asked for, the wrapper then has the ABI of the function that it stands for. */
static int replace(int result, void **address) {
    if (result != CUDA_SUCCESS || !address || !*address) return result;
    void *wrapper = wrapper_of(*address);
    if (wrapper) *address = wrapper;
    return result;
}

int cuGetProcAddress(const char *name, void **address, int version, uint64_t flags) {
    return replace(REAL(cuGetProcAddress)(name, address, version, flags), address);
}

int cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags, int *status) {
    return replace(REAL(cuGetProcAddress_v2)(name, address, version, flags, status), address);
}
