/* Calls that share memory between processes or cards. They are charged elsewhere: here it is noted that they were made.
 */
#include "share.h"

#include "charging/charge.h"
#include "charging/devices.h"
#include "charging/pools.h"
#include "client.h"
#include "ledger.h"
#include "resolve.h"

struct lease_page *share_begin(uint32_t how) {
    /* Without a session there is no scheduler that could move anything of this process. */
    struct lease_page *page = charge_open() == CUDA_SUCCESS ? client_page() : NULL;
    if (!page || (atomic_load_explicit(&page->shared, memory_order_relaxed) & how) == how) return NULL;
    lease_share(page);
    return page;
}

/* Not in a child that a signal's handler has forked within the call: the page is its parent's. */
int share_end(struct lease_page *page, uint32_t how, int result) {
    if (page && client_page() == page) lease_shares(page, result == CUDA_SUCCESS ? how : 0);
    return result;
}

int cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle, int type,
                                 unsigned long long flags) {
    SHARE(LEASE_SHARES_EXPORTED, REAL(cuMemExportToShareableHandle)(shareable, handle, type, flags));
}

int cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t bytes, int type, unsigned long long flags) {
    SHARE(LEASE_SHARES_EXPORTED, REAL(cuMemGetHandleForAddressRange)(handle, address, bytes, type, flags));
}

int cuMulticastCreate(CUmemGenericAllocationHandle *handle, const void *properties) {
    SHARE(LEASE_SHARES_MULTICAST, REAL(cuMulticastCreate)(handle, properties));
}

int cuMemPoolExportToShareableHandle(void *shareable, CUmemoryPool handle, int type, unsigned long long flags) {
    SHARE(LEASE_SHARES_POOL, REAL(cuMemPoolExportToShareableHandle)(shareable, handle, type, flags));
}

int cuMemPoolExportPointer(void *data, CUdeviceptr address) {
    SHARE(LEASE_SHARES_POOL, REAL(cuMemPoolExportPointer)(data, address));
}

int cuMemPoolImportPointer(CUdeviceptr *address, CUmemoryPool handle, void *data) {
    SHARE(LEASE_SHARES_POOL, REAL(cuMemPoolImportPointer)(address, handle, data));
}

int cuIpcGetMemHandle(CUipcHandle *handle, CUdeviceptr address) {
    SHARE(LEASE_SHARES_IPC, REAL(cuIpcGetMemHandle)(handle, address));
}

int cuIpcOpenMemHandle(CUdeviceptr *address, CUipcHandle handle, unsigned int flags) {
    SHARE(LEASE_SHARES_IPC, REAL(cuIpcOpenMemHandle)(address, handle, flags));
}

int cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcHandle handle, unsigned int flags) {
    SHARE(LEASE_SHARES_IPC, REAL(cuIpcOpenMemHandle_v2)(address, handle, flags));
}

int cuIpcGetEventHandle(CUipcHandle *handle, CUevent event) {
    SHARE(LEASE_SHARES_IPC, REAL(cuIpcGetEventHandle)(handle, event));
}

int cuIpcOpenEventHandle(CUevent *event, CUipcHandle handle) {
    SHARE(LEASE_SHARES_IPC, REAL(cuIpcOpenEventHandle)(event, handle));
}

int cuImportExternalMemory(void **memory, const void *description) {
    SHARE(LEASE_SHARES_EXTERNAL, REAL(cuImportExternalMemory)(memory, description));
}

/* ---- between cards ---- */

int cuCtxEnablePeerAccess(CUcontext context, unsigned int flags) {
    SHARE(LEASE_SHARES_PEER, REAL(cuCtxEnablePeerAccess)(context, flags));
}

/* Whether a device gets access whose slot is not that of the memory (`own`). Memory without one is on the host, or
 * imported: that is noted already. */
static bool names_another(const CUmemAccessDesc *accesses, size_t count, int own) {
    CUresult error;
    for (size_t at = 0; own != NO_SLOT && accesses && at < count; at++)
        if (accesses[at].flags && accesses[at].location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
            devices_slot(accesses[at].location.id, &error) != own)
            return true;
    return false;
}

/* Of a range over several mappings each may lie on another card. */
int cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *accesses, size_t count) {
    bool another = false;
    struct ledger_entry mapping;
    for (CUdeviceptr at = address; !another && at < address + bytes; at += mapping.bytes) {
        bool known = ledger_get(LEDGER_MAPPING, at, &mapping);
        another = names_another(accesses, count, known ? mapping.slot : NO_SLOT);
        if (!known || !mapping.bytes) break;
    }
    SHARE(another ? LEASE_SHARES_PEER : 0, REAL(cuMemSetAccess)(address, bytes, accesses, count));
}

int cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *accesses, size_t count) {
    CUresult error;
    const struct pool *pool = pools_find(handle, &error);
    uint32_t how = names_another(accesses, count, pool ? pool->slot : NO_SLOT) ? LEASE_SHARES_PEER : 0;
    SHARE(how, REAL(cuMemPoolSetAccess)(handle, accesses, count));
}
