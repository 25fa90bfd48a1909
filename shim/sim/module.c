/* Modules from PTX text, and launches. The simulated card cannot run PTX: it knows one kernel by its name and does on
 * the host what that kernel does on a card. Any other kernel can be looked up, and its launch is refused. */
#include "driver.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALSO(name, of) extern __typeof__(of) name __attribute__((alias(#of), visibility("default")))

struct function {
    struct function *next;
    char name[128];
};

struct module {
    char *text;
    struct function *functions;
};

static bool is_name(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%'; }

static bool has_entry(const char *text, const char *name) {
    size_t length = strlen(name);
    for (const char *entry = text; (entry = strstr(entry, ".entry")) != NULL;) {
        entry += strlen(".entry");
        const char *word = entry + strspn(entry, " \t\r\n");
        if (word > entry && strncmp(word, name, length) == 0 && !is_name(word[length])) return true;
    }
    return false;
}

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (module == NULL || image == NULL) return CUDA_ERROR_INVALID_VALUE;
    const char *text = image;
    /* PTX begins with its version, after white space and comments; an ELF or fat binary begins with other bytes. */
    bool ptx = text[strspn(text, " \t\r\n")] == '.' || text[strspn(text, " \t\r\n")] == '/';
    if (!ptx || strstr(text, ".version") == NULL || strstr(text, ".target") == NULL) return CUDA_ERROR_INVALID_IMAGE;
    struct module *made = calloc(1, sizeof *made);
    if (made != NULL) made->text = strdup(text);
    if (made == NULL || made->text == NULL) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *module = made;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options, void **values) {
    (void)count;
    (void)options;
    (void)values;
    return cuModuleLoadData(module, image);
}

EXPORT CUresult cuModuleUnload(CUmodule module) {
    if (module == NULL) return CUDA_ERROR_INVALID_HANDLE;
    for (struct function *function = module->functions, *next; function != NULL; function = next) {
        next = function->next;
        free(function);
    }
    free(module->text);
    free(module);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    if (function == NULL || name == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (module == NULL) return CUDA_ERROR_INVALID_HANDLE;
    if (strlen(name) >= sizeof module->functions->name || !has_entry(module->text, name)) return CUDA_ERROR_NOT_FOUND;
    struct function *made = calloc(1, sizeof *made);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    snprintf(made->name, sizeof made->name, "%s", name);
    made->next = module->functions;
    module->functions = made;
    *function = made;
    return CUDA_SUCCESS;
}

/* complement(data, words): thread i turns over every bit of the i-th 64-bit word, if there is one. */
static CUresult complement(uint64_t threads, void **params) {
    CUdeviceptr data = *(CUdeviceptr *)params[0];
    uint64_t words = *(uint64_t *)params[1], bytes;
    if (words > threads) words = threads;
    if (data % 8 != 0 || __builtin_mul_overflow(words, 8, &bytes) || !memory_covers(data, bytes))
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    uint64_t *word = (uint64_t *)(uintptr_t)data;
    for (uint64_t i = 0; i < words; i++) word[i] = ~word[i];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                               unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,
                               void **params, void **extra) {
    (void)stream;
    (void)extra;
    struct context *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (function == NULL) return CUDA_ERROR_INVALID_HANDLE;
    uint64_t threads = (uint64_t)block_x * block_y * block_z;
    uint64_t blocks = (uint64_t)grid_x * grid_y * grid_z;
    if (threads == 0 || threads > 1024 || blocks == 0 || shared_bytes > 49152) return CUDA_ERROR_INVALID_VALUE;
    if (strcmp(function->name, "complement") != 0) return CUDA_ERROR_NOT_SUPPORTED;
    if (params == NULL) return CUDA_ERROR_INVALID_VALUE;
    /* As on a card, a bad address shows at the next call, and the context stays broken. */
    context->broken = complement(blocks * threads, params);
    return CUDA_SUCCESS;
}
ALSO(cuLaunchKernel_ptsz, cuLaunchKernel);
