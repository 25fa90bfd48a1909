/* cuGetProcAddress: how every CUDA 11.3 and newer runtime gets at the driver.
 *
 * The real one is called first, and what it returned is replaced by *address*: whatever version and stream flags were
 * asked for, the wrapper then has the ABI of the function that it stands for. */
#include "hooks.h"

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
