/* Memory that several processes use: IPC handles, exported pools' pointers, external memory. The importer maps the
 * exporter's memory file; only the exporter holds the card's units. */
#include "driver.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Which bytes of which file: what travels in a CUipcMemHandle or CUmemPoolPtrExportData. */
struct where {
    uint8_t uuid[16];
    uint64_t offset, bytes;
    int32_t pid, file;
};

struct ipc_handle {
    struct where where;
    unsigned char rest[64 - sizeof(struct where)];
};
_Static_assert(sizeof(struct ipc_handle) == 64, "CUDA's layout");

static bool locate(CUdeviceptr address, const struct place *place, struct where *where) {
    off_t offset;
    int file = heap_file(address, &offset);
    if (file < 0) return false;
    *where = (struct where){.offset = (uint64_t)offset, .bytes = place->bytes, .pid = getpid(), .file = file};
    memcpy(where->uuid, card_open()->gpu[card_here(place->gpu)].uuid, sizeof where->uuid);
    return true;
}

static int gpu_with(const uint8_t *uuid) {
    for (CUdevice device = 0; device < sim_devices(); device++)
        if (memcmp(card_open()->gpu[card_here(sim_gpu(device))].uuid, uuid, 16) == 0) return (int)sim_gpu(device);
    return -1;
}

/* Maps whole units around the bytes. */
static CUresult map(int file, const struct where *where, CUdeviceptr *address) {
    int gpu = gpu_with(where->uuid);
    if (gpu < 0) return CUDA_ERROR_INVALID_DEVICE;
    uint64_t inside = where->offset % CARD_UNIT;
    CUresult result =
        vmm_map_file(file, (off_t)(where->offset - inside), inside + where->bytes, (unsigned)gpu, address);
    if (result == CUDA_SUCCESS) *address += inside;
    return result;
}

/* ---- IPC ---- */

EXPORT CUresult cuIpcGetMemHandle(struct ipc_handle *handle, CUdeviceptr address) {
    ENTERED_IN(context);
    struct place place;
    if (handle == NULL || !heap_find(address, &place) || place.kind != BLOCK_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    memset(handle, 0, sizeof *handle);
    if (!locate(place.base, &place, &handle->where)) return CUDA_ERROR_INVALID_VALUE;
    gate_share(+1);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, struct ipc_handle handle, unsigned flags) {
    ENTERED_IN(context);
    if (address == NULL || flags != 1 /* lazy peer access */) return CUDA_ERROR_INVALID_VALUE;
    if (handle.where.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT; /* a process cannot open its own */
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)handle.where.pid, (int)handle.where.file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = map(file, &handle.where, address);
    if (result == CUDA_SUCCESS) gate_share(+1);
    close(file);
    return result;
}

ENTRY(cuIpcOpenMemHandle, (CUdeviceptr *address, struct ipc_handle handle, unsigned flags),
      cuIpcOpenMemHandle_v2(address, handle, flags));

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
    ENTERED_IN(context);
    if (!vmm_unmap_file(address / CARD_UNIT * CARD_UNIT)) return CUDA_ERROR_INVALID_VALUE;
    gate_share(-1);
    return CUDA_SUCCESS;
}

/* ---- pools ---- */

EXPORT CUresult cuMemPoolExportToShareableHandle(void *shareable, CUmemoryPool pool, int type,
                                                 unsigned long long flags) {
    ENTERED();
    if (shareable == NULL || type != HANDLE_POSIX_FD || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    unsigned gpu;
    if (!pool_exportable(pool, &gpu)) return CUDA_ERROR_INVALID_VALUE;
    int file = heap_open(gpu);
    int given = file >= 0 ? dup(file) : -1;
    if (given < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    *(int *)shareable = given;
    gate_tie();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *shareable, int type,
                                                   unsigned long long flags) {
    ENTERED_READY();
    struct stat status;
    int given = (int)(intptr_t)shareable;
    if (pool == NULL || type != HANDLE_POSIX_FD || flags != 0 || fstat(given, &status) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    *pool = pool_import(dup(given));
    gate_tie();
    return *pool != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuMemPoolExportPointer(struct ipc_handle *data, CUdeviceptr address) {
    ENTERED_READY();
    struct place place;
    unsigned gpu;
    if (data == NULL || !pool_find(address, &place) || !pool_exportable((CUmemoryPool)place.owner, &gpu))
        return CUDA_ERROR_INVALID_VALUE;
    memset(data, 0, sizeof *data);
    return locate(place.base, &place, &data->where) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr *address, CUmemoryPool pool, const struct ipc_handle *data) {
    ENTERED_READY();
    int file = pool_imported_file(pool);
    if (address == NULL || data == NULL || file < 0) return CUDA_ERROR_INVALID_VALUE;
    return map(file, &data->where, address);
}

/* ---- external memory ---- */

struct external {
    int file;
    uint64_t bytes;
};

struct external_descriptor { /* CUDA_EXTERNAL_MEMORY_HANDLE_DESC */
    int type;
    union {
        int file;
        struct {
            void *handle;
            const void *name;
        } other;
    };
    unsigned long long bytes;
    unsigned flags, reserved[16];
};
_Static_assert(sizeof(struct external_descriptor) == 104, "CUDA's layout");

struct buffer_descriptor {
    unsigned long long offset, bytes;
    unsigned flags, reserved[16];
};

EXPORT CUresult cuImportExternalMemory(struct external **external, const struct external_descriptor *is) {
    ENTERED_IN(context);
    if (external == NULL || is == NULL || is->bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (is->type != 1 /* a file descriptor */) return CUDA_ERROR_NOT_SUPPORTED;
    struct external *made = malloc(sizeof *made);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct external){is->file, is->bytes}; /* the descriptor is ours from now on */
    gate_tie();
    *external = made;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *address, struct external *external,
                                                const struct buffer_descriptor *buffer) {
    ENTERED_IN(context);
    if (address == NULL || external == NULL || buffer == NULL || buffer->bytes > external->bytes ||
        buffer->offset > external->bytes - buffer->bytes)
        return CUDA_ERROR_INVALID_VALUE;
    struct where where = {.offset = buffer->offset, .bytes = buffer->bytes};
    memcpy(where.uuid, card_open()->gpu[card_here(sim_gpu(context->device))].uuid, sizeof where.uuid);
    return map(external->file, &where, address);
}
