/* Modules from PTX text, and launches. The simulated card cannot run PTX: it knows two kernels by their names and does
 * on the host what they do on a card. Any other kernel can be looked up, and its launch is refused. */
#include "driver.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct function {
    struct function *next;
    enum kernel kernel;
};

/* A .global of the module: it lives in device memory. */
struct variable {
    struct variable *next;
    char name[128];
    CUdeviceptr address;
    uint64_t bytes;
};

struct module {
    char *text;
    struct function *functions;
    struct variable *variables;
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

/* ---- loading ---- */

/* ".global .align 8 .b8 name[4096];": the bytes, or 0 for another statement. */
static uint64_t parse_global(const char *text, char *name) {
    static const char TYPE[] = "bsuf";
    unsigned bits = 0;
    unsigned long long count = 1;
    for (const char *word = text; *word != '\0' && *word != ';' && *word != '='; word += strcspn(word, " \t\r\n;=[")) {
        word += strspn(word, " \t\r\n");
        if (word[0] == '.' && word[1] != '\0' && strchr(TYPE, word[1]) != NULL && isdigit((unsigned char)word[2])) {
            bits = (unsigned)atoi(word + 2);
        } else if (*word == '[') {
            count = strtoull(word + 1, NULL, 10);
            break;
        } else if (bits > 0 && sscanf(word, "%127[A-Za-z0-9_$%]", name) != 1) {
            return 0;
        }
        if (*word == ';' || *word == '=') break;
    }
    return bits / 8 * count;
}

static CUresult take_globals(struct module *module, const struct context *context) {
    const char *text = module->text;
    while ((text = strstr(text, ".global ")) != NULL) {
        text += strlen(".global ");
        char name[128] = "";
        uint64_t bytes = parse_global(text, name);
        if (bytes == 0 || name[0] == '\0') continue;
        struct variable *made = calloc(1, sizeof *made);
        if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
        snprintf(made->name, sizeof made->name, "%s", name);
        made->bytes = bytes;
        CUresult result = heap_take(sim_gpu(context->device), context, bytes, BLOCK_DEVICE, &made->address);
        if (result != CUDA_SUCCESS) {
            free(made);
            return result;
        }
        made->next = module->variables;
        module->variables = made;
    }
    return CUDA_SUCCESS;
}

static void unload(struct module *module) {
    for (struct function *function = module->functions, *next; function != NULL; function = next) {
        next = function->next;
        free(function);
    }
    for (struct variable *variable = module->variables, *next; variable != NULL; variable = next) {
        next = variable->next;
        heap_give(variable->address);
        free(variable);
    }
    free(module->text);
    free(module);
}

static CUresult load(CUmodule *module, const char *text) {
    struct context *context;
    REQUIRE(context_current(&context));
    if (module == NULL || text == NULL) return CUDA_ERROR_INVALID_VALUE;
    /* PTX begins with its version, after white space and comments; an ELF or fat binary begins with other bytes. */
    char first = text[strspn(text, " \t\r\n")];
    bool ptx = (first == '.' || first == '/') && strstr(text, ".version") != NULL && strstr(text, ".target") != NULL;
    if (!ptx) return CUDA_ERROR_INVALID_IMAGE;
    struct module *made = calloc(1, sizeof *made);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    made->text = strdup(text);
    CUresult result = made->text != NULL ? take_globals(made, context) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS)
        *module = made;
    else
        unload(made);
    return result;
}

ENTRY(cuModuleLoadData, (CUmodule *module, const void *image), load(module, image));

EXPORT CUresult cuModuleUnload(CUmodule module) {
    ENTERED();
    if (module == NULL) return CUDA_ERROR_INVALID_HANDLE;
    unload(module);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule module, const char *name) {
    ENTERED();
    if (module == NULL) return CUDA_ERROR_INVALID_HANDLE;
    if (name == NULL) return CUDA_ERROR_INVALID_VALUE;
    const struct variable *variable = module->variables;
    while (variable != NULL && strcmp(variable->name, name) != 0) variable = variable->next;
    if (variable == NULL) return CUDA_ERROR_NOT_FOUND;
    if (address != NULL) *address = variable->address;
    if (bytes != NULL) *bytes = variable->bytes;
    return CUDA_SUCCESS;
}

static enum kernel known(const char *name) {
    if (strcmp(name, "complement") == 0) return KERNEL_COMPLEMENT;
    return strcmp(name, "compute") == 0 ? KERNEL_COMPUTE : KERNEL_UNKNOWN;
}

static CUresult find_function(CUfunction *function, CUmodule module, const char *name) {
    if (function == NULL || name == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (module == NULL) return CUDA_ERROR_INVALID_HANDLE;
    if (!has_entry(module->text, name)) return CUDA_ERROR_NOT_FOUND;
    struct function *made = calloc(1, sizeof *made);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    made->kernel = known(name);
    made->next = module->functions;
    module->functions = made;
    *function = made;
    return CUDA_SUCCESS;
}

ENTRY(cuModuleGetFunction, (CUfunction *function, CUmodule module, const char *name),
      find_function(function, module, name));

/* ---- libraries: modules that belong to no context; here they are loaded into the current one at once ---- */

ENTRY(cuLibraryLoadData,
      (CUmodule *library, const void *code, int *jit_options, void **jit_values, unsigned jit_count, int *options,
       void **values, unsigned count),
      load(library, code));

ENTRY(cuLibraryGetKernel, (CUfunction *kernel, CUmodule library, const char *name),
      find_function(kernel, library, name));

/* ---- launches ---- */

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                               unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,
                               void **params, void **extra) {
    ENTERED_IN(context);
    if (function == NULL) return CUDA_ERROR_INVALID_HANDLE;
    uint64_t threads = (uint64_t)block_x * block_y * block_z;
    uint64_t blocks = (uint64_t)grid_x * grid_y * grid_z;
    if (threads == 0 || threads > 1024 || blocks == 0 || shared_bytes > 49152) return CUDA_ERROR_INVALID_VALUE;
    if (function->kernel == KERNEL_UNKNOWN) return CUDA_ERROR_NOT_SUPPORTED;
    if (params == NULL) return CUDA_ERROR_INVALID_VALUE;
    struct launch launch = {function->kernel, blocks * threads, {*(uint64_t *)params[0], *(uint64_t *)params[1]}};
    return work_submit(stream, &(struct work){.type = NODE_KERNEL, .launch = launch});
}
ALSO(cuLaunchKernel_ptsz, cuLaunchKernel);
