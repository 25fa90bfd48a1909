/* Streams: only that one has gone, since threads remember which pool a stream allocates from. */
#include "devices.h"
#include "hooks.h"

int cuStreamDestroy(CUstream stream) {
    CUresult result = REAL(cuStreamDestroy)(stream);
    devices_changed();
    return result;
}

int cuStreamDestroy_v2(CUstream stream) {
    CUresult result = REAL(cuStreamDestroy_v2)(stream);
    devices_changed();
    return result;
}
