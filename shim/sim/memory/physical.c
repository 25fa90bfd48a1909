/* Physical memory and its handles. It lives until its last handle is released and its last mapping is gone.
 *
 * It is part of the process's memory file, mapped a second time at the program's address; memory that can be exported
 * has a file of its own, which is the exported handle. */
#include "physical.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

pthread_mutex_t physical_lock = PTHREAD_MUTEX_INITIALIZER;
/* A handle is a place in this table and a serial number, so that a stale one differs from a new one. */
static struct {
    struct physical *physical;
    uint32_t serial;
} *handles;
static uint32_t handle_count;

/* ---- handles ---- */

CUmemHandle handle_new(struct physical *physical) {
    uint32_t i = 0;
    while (i < handle_count && handles[i].physical != NULL) i++;
    if (i == handle_count) {
        uint32_t more = handle_count ? handle_count * 2 : 64;
        void *grown = realloc(handles, more * sizeof *handles);
        if (grown == NULL) return 0;
        handles = grown;
        memset(&handles[handle_count], 0, (more - handle_count) * sizeof *handles);
        handle_count = more;
    }
    handles[i].physical = physical;
    physical->handles++;
    return (CUmemHandle)++handles[i].serial << 32 | (i + 1);
}

struct physical *handle_get(CUmemHandle handle) {
    uint32_t i = (uint32_t)handle - 1;
    return i < handle_count && handles[i].serial == handle >> 32 ? handles[i].physical : NULL;
}

void physical_end(struct physical *physical) {
    if (physical->handles > 0 || physical->mappings > 0) return;
    if (physical->hidden != 0) {
        heap_give(physical->hidden);
    } else {
        close(physical->file);
        if (physical->units.taken != NULL) units_give(physical->gpu, &physical->units);
    }
    free(physical);
}

/* ---- physical memory ---- */

static CUresult own_file(struct physical *physical, bool on_card) {
    uint64_t units = on_card ? physical->bytes / CARD_UNIT : 0;
    REQUIRE(units_take(physical->gpu, units, &physical->units));
    physical->file = (int)syscall(SYS_memfd_create, "simulated GPU memory, exported", 1u /* MFD_CLOEXEC */);
    if (physical->file >= 0 && ftruncate(physical->file, (off_t)physical->bytes) == 0) return CUDA_SUCCESS;
    if (physical->file >= 0) close(physical->file);
    units_give(physical->gpu, &physical->units);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult check(const struct properties *properties) {
    if (properties == NULL || properties->type != TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    if (properties->location.type == LOCATION_HOST) return CUDA_SUCCESS;
    if (properties->location.type != LOCATION_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    if (properties->handle_types & ~HANDLE_POSIX_FD) return CUDA_ERROR_NOT_SUPPORTED;
    return sim_valid(properties->location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuMemCreate(CUmemHandle *handle, size_t bytes, const struct properties *properties,
                            unsigned long long flags) {
    ENTERED_READY();
    if (handle == NULL || bytes == 0 || bytes % CARD_UNIT != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    REQUIRE(check(properties));
    bool on_card = properties->location.type == LOCATION_DEVICE;
    unsigned gpu = on_card ? sim_gpu(properties->location.id) : 0;
    if (bytes > card_open()->gpu[gpu].units * CARD_UNIT || !card_join()) return CUDA_ERROR_OUT_OF_MEMORY;
    struct physical *physical = calloc(1, sizeof *physical);
    if (physical == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *physical = (struct physical){.gpu = gpu, .bytes = bytes, .properties = *properties};
    if (!on_card) gate_tie();
    CUresult result;
    if (!on_card || properties->handle_types != HANDLE_NONE)
        result = own_file(physical, on_card);
    else
        result = heap_take_hidden(gpu, bytes, &physical->hidden, &physical->file, &physical->offset);
    if (result != CUDA_SUCCESS) {
        free(physical);
        return result;
    }
    HOLD(&physical_lock);
    *handle = handle_new(physical);
    if (*handle != 0) return CUDA_SUCCESS;
    physical_end(physical);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuMemRelease(CUmemHandle handle) {
    ENTERED_READY();
    HOLD(&physical_lock);
    struct physical *physical = handle_get(handle);
    if (physical == NULL) return CUDA_ERROR_INVALID_VALUE;
    handles[(uint32_t)handle - 1].physical = NULL;
    physical->handles--;
    physical_end(physical);
    return CUDA_SUCCESS;
}

/* ---- sharing ---- */

EXPORT CUresult cuMemExportToShareableHandle(void *shareable, CUmemHandle handle, int type, unsigned long long flags) {
    ENTERED_READY();
    HOLD(&physical_lock);
    const struct physical *physical = handle_get(handle);
    if (physical == NULL || shareable == NULL || flags != 0 || type != HANDLE_POSIX_FD ||
        !(physical->properties.handle_types & HANDLE_POSIX_FD))
        return CUDA_ERROR_INVALID_VALUE;
    int file = dup(physical->file);
    if (file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    *(int *)shareable = file;
    gate_tie();
    return CUDA_SUCCESS;
}

struct physical *physical_import(int given, off_t offset, uint64_t bytes, unsigned gpu) {
    struct physical *physical = calloc(1, sizeof *physical);
    int file = dup(given);
    if (physical == NULL || file < 0) {
        free(physical);
        if (file >= 0) close(file);
        return NULL;
    }
    *physical = (struct physical){.gpu = gpu, .bytes = bytes, .file = file, .offset = offset};
    physical->properties =
        (struct properties){.type = TYPE_PINNED, .handle_types = HANDLE_POSIX_FD, .location = {LOCATION_DEVICE, 0}};
    return physical;
}

EXPORT CUresult cuMemImportFromShareableHandle(CUmemHandle *handle, void *shareable, int type) {
    ENTERED_READY();
    struct stat status;
    int given = (int)(intptr_t)shareable;
    if (handle == NULL || type != HANDLE_POSIX_FD || fstat(given, &status) != 0 || status.st_size == 0 ||
        (uint64_t)status.st_size % CARD_UNIT != 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct physical *physical = physical_import(given, 0, (uint64_t)status.st_size, sim_gpu(0));
    if (physical == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    HOLD(&physical_lock);
    *handle = handle_new(physical);
    gate_tie();
    return *handle != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void *physical_attach(CUmemHandle handle) {
    HOLD(&physical_lock);
    struct physical *physical = handle_get(handle);
    if (physical != NULL) physical->mappings++;
    return physical;
}

void physical_detach(void *attached) {
    struct physical *physical = attached;
    HOLD(&physical_lock);
    physical->mappings--;
    physical_end(physical);
}
