/* THE table of intercepted calls. Everything else about them comes from here: the wrappers' declarations, the real
 * functions' pointers (resolve.h), and what `dlsym` and `cuGetProcAddress` hand out instead (hooks_entry.c).
 *
 *     X(library, name, parameters)
 *
 * To intercept one more call: add its line, write its wrapper in one of hooks/hooks_*.c, add its row to README.md (a
 * new form of a call that is there needs none). All return CUresult, nvmlReturn_t or ncclResult_t, which are int.
 */
#ifndef GPUSHARE_HOOKS_H
#define GPUSHARE_HOOKS_H

#include "cuda_abi.h"
#include "nccl_abi.h"

#define HOOKS(X)                                                                                                       \
    HOOKS_ENTRY(X)                                                                                                     \
    HOOKS_MEMORY(X)                                                                                                    \
    HOOKS_POOL(X)                                                                                                      \
    HOOKS_VIRTUAL(X)                                                                                                   \
    HOOKS_SHARE(X)                                                                                                     \
    HOOKS_ARRAY(X)                                                                                                     \
    HOOKS_GRAPH(X)                                                                                                     \
    HOOKS_NESTED(X)                                                                                                    \
    HOOKS_KERNEL(X)                                                                                                    \
    HOOKS_STREAM(X)                                                                                                    \
    HOOKS_ASKING(X)                                                                                                    \
    HOOKS_CONTEXT(X)                                                                                                   \
    HOOKS_REPORT(X)                                                                                                    \
    HOOKS_NCCL(X)                                                                                                      \
    HOOKS_COMMUNICATOR(X)

/* hooks_entry.c: ways to get at the other calls, beside dlsym */
#define HOOKS_ENTRY(X)                                                                                                 \
    X(CUDA, cuGetProcAddress, (const char *name, void **address, int version, uint64_t flags))                         \
    X(CUDA, cuGetProcAddress_v2, (const char *name, void **address, int version, uint64_t flags, int *status))

/* hooks_memory.c */
#define HOOKS_MEMORY(X)                                                                                                \
    X(CUDA, cuMemAlloc, (CUdeviceptr_v1 * address, unsigned int bytes))                                                \
    X(CUDA, cuMemAlloc_v2, (CUdeviceptr * address, size_t bytes))                                                      \
    X(CUDA, cuMemAllocPitch,                                                                                           \
      (CUdeviceptr_v1 * address, unsigned int *pitch, unsigned int width, unsigned int height, unsigned int element))  \
    X(CUDA, cuMemAllocPitch_v2,                                                                                        \
      (CUdeviceptr * address, size_t *pitch, size_t width, size_t height, unsigned int element))                       \
    X(CUDA, cuMemAllocManaged, (CUdeviceptr * address, size_t bytes, unsigned int flags))                              \
    X(CUDA, cuMemFree, (CUdeviceptr_v1 address))                                                                       \
    X(CUDA, cuMemFree_v2, (CUdeviceptr address))

/* hooks_pool.c */
#define HOOKS_POOL(X)                                                                                                  \
    X(CUDA, cuMemAllocAsync, (CUdeviceptr * address, size_t bytes, CUstream stream))                                   \
    X(CUDA, cuMemAllocAsync_ptsz, (CUdeviceptr * address, size_t bytes, CUstream stream))                              \
    X(CUDA, cuMemAllocFromPoolAsync, (CUdeviceptr * address, size_t bytes, CUmemoryPool handle, CUstream stream))      \
    X(CUDA, cuMemAllocFromPoolAsync_ptsz, (CUdeviceptr * address, size_t bytes, CUmemoryPool handle, CUstream stream)) \
    X(CUDA, cuMemFreeAsync, (CUdeviceptr address, CUstream stream))                                                    \
    X(CUDA, cuMemFreeAsync_ptsz, (CUdeviceptr address, CUstream stream))                                               \
    X(CUDA, cuMemPoolCreate, (CUmemoryPool * handle, const CUmemPoolProps *properties))                                \
    X(CUDA, cuMemPoolDestroy, (CUmemoryPool handle))                                                                   \
    X(CUDA, cuMemPoolTrimTo, (CUmemoryPool handle, size_t keep))                                                       \
    X(CUDA, cuMemPoolSetAttribute, (CUmemoryPool handle, int attribute, void *value))                                  \
    X(CUDA, cuMemPoolImportFromShareableHandle,                                                                        \
      (CUmemoryPool * handle, void *shared, int type, unsigned long long flags))                                       \
    X(CUDA, cuDeviceSetMemPool, (CUdevice device, CUmemoryPool handle))                                                \
    X(CUDA, cuMemSetMemPool, (CUmemLocation * location, int type, CUmemoryPool handle))                                \
    X(CUDA, cuMemGetMemPool, (CUmemoryPool * handle, CUmemLocation * location, int type))                              \
    X(CUDA, cuMemGetDefaultMemPool, (CUmemoryPool * handle, CUmemLocation * location, int type))

/* hooks_virtual.c */
#define HOOKS_VIRTUAL(X)                                                                                               \
    X(CUDA, cuMemCreate,                                                                                               \
      (CUmemGenericAllocationHandle * handle, size_t bytes, const CUmemAllocationProp *properties,                     \
       unsigned long long flags))                                                                                      \
    X(CUDA, cuMemRelease, (CUmemGenericAllocationHandle handle))                                                       \
    X(CUDA, cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void *address))                       \
    X(CUDA, cuMemImportFromShareableHandle, (CUmemGenericAllocationHandle * handle, void *shared, int type))           \
    X(CUDA, cuMemMap,                                                                                                  \
      (CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,                          \
       unsigned long long flags))                                                                                      \
    X(CUDA, cuMemUnmap, (CUdeviceptr address, size_t bytes))                                                           \
    X(CUDA, cuMemMapArrayAsync, (CUarrayMapInfo * tiles, unsigned int count, CUstream stream))                         \
    X(CUDA, cuMemMapArrayAsync_ptsz, (CUarrayMapInfo * tiles, unsigned int count, CUstream stream))

/* hooks_share.c */
#define HOOKS_SHARE(X)                                                                                                 \
    X(CUDA, cuMemExportToShareableHandle,                                                                              \
      (void *shareable, CUmemGenericAllocationHandle handle, int type, unsigned long long flags))                      \
    X(CUDA, cuMemGetHandleForAddressRange,                                                                             \
      (void *handle, CUdeviceptr address, size_t bytes, int type, unsigned long long flags))                           \
    X(CUDA, cuMemSetAccess, (CUdeviceptr address, size_t bytes, const CUmemAccessDesc *accesses, size_t count))        \
    X(CUDA, cuMulticastCreate, (CUmemGenericAllocationHandle * handle, const void *properties))                        \
    X(CUDA, cuMemPoolExportToShareableHandle,                                                                          \
      (void *shareable, CUmemoryPool handle, int type, unsigned long long flags))                                      \
    X(CUDA, cuMemPoolExportPointer, (void *data, CUdeviceptr address))                                                 \
    X(CUDA, cuMemPoolImportPointer, (CUdeviceptr * address, CUmemoryPool handle, void *data))                          \
    X(CUDA, cuMemPoolSetAccess, (CUmemoryPool handle, const CUmemAccessDesc *accesses, size_t count))                  \
    X(CUDA, cuIpcGetMemHandle, (CUipcHandle * handle, CUdeviceptr address))                                            \
    X(CUDA, cuIpcOpenMemHandle, (CUdeviceptr * address, CUipcHandle handle, unsigned int flags))                       \
    X(CUDA, cuIpcOpenMemHandle_v2, (CUdeviceptr * address, CUipcHandle handle, unsigned int flags))                    \
    X(CUDA, cuIpcGetEventHandle, (CUipcHandle * handle, CUevent event))                                                \
    X(CUDA, cuIpcOpenEventHandle, (CUevent * event, CUipcHandle handle))                                               \
    X(CUDA, cuCtxEnablePeerAccess, (CUcontext context, unsigned int flags))                                            \
    X(CUDA, cuImportExternalMemory, (void **memory, const void *description))

/* hooks_array.c */
#define HOOKS_ARRAY(X)                                                                                                 \
    X(CUDA, cuArrayCreate, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR_v1 *description))                             \
    X(CUDA, cuArrayCreate_v2, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR *description))                             \
    X(CUDA, cuArray3DCreate, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *description))                         \
    X(CUDA, cuArray3DCreate_v2, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR *description))                         \
    X(CUDA, cuArrayDestroy, (CUarray array))                                                                           \
    X(CUDA, cuMipmappedArrayCreate,                                                                                    \
      (CUmipmappedArray * array, const CUDA_ARRAY3D_DESCRIPTOR *description, unsigned int levels))                     \
    X(CUDA, cuMipmappedArrayDestroy, (CUmipmappedArray array))

/* hooks_graph.c */
#define HOOKS_GRAPH(X)                                                                                                 \
    X(CUDA, cuGraphInstantiate, (CUgraphExec * exec, CUgraph graph, CUgraphNode * error, char *log, size_t size))      \
    X(CUDA, cuGraphInstantiate_v2, (CUgraphExec * exec, CUgraph graph, CUgraphNode * error, char *log, size_t size))   \
    X(CUDA, cuGraphInstantiateWithFlags, (CUgraphExec * exec, CUgraph graph, unsigned long long flags))                \
    X(CUDA, cuGraphInstantiateWithParams, (CUgraphExec * exec, CUgraph graph, void *parameters))                       \
    X(CUDA, cuGraphInstantiateWithParams_ptsz, (CUgraphExec * exec, CUgraph graph, void *parameters))                  \
    X(CUDA, cuGraphUpload, (CUgraphExec exec, CUstream stream))                                                        \
    X(CUDA, cuGraphUpload_ptsz, (CUgraphExec exec, CUstream stream))                                                   \
    X(CUDA, cuGraphLaunch, (CUgraphExec exec, CUstream stream))                                                        \
    X(CUDA, cuGraphLaunch_ptsz, (CUgraphExec exec, CUstream stream))                                                   \
    X(CUDA, cuGraphExecDestroy, (CUgraphExec exec))                                                                    \
    X(CUDA, cuDeviceGraphMemTrim, (CUdevice device))

/* hooks_nested.c */
#define HOOKS_NESTED(X)                                                                                                \
    X(CUDA, cuGraphDestroy, (CUgraph graph))                                                                           \
    X(CUDA, cuGraphClone, (CUgraph * clone, CUgraph graph))                                                            \
    X(CUDA, cuGraphAddChildGraphNode,                                                                                  \
      (CUgraphNode * node, CUgraph graph, const CUgraphNode *before, size_t count, CUgraph child))                     \
    X(CUDA, cuGraphAddNode,                                                                                            \
      (CUgraphNode * node, CUgraph graph, const CUgraphNode *before, size_t count, CUgraphNodeParams *parameters))     \
    X(CUDA, cuGraphAddNode_v2,                                                                                         \
      (CUgraphNode * node, CUgraph graph, const CUgraphNode *before, const void *edges, size_t count,                  \
       CUgraphNodeParams *parameters))                                                                                 \
    X(CUDA, cuGraphExecUpdate, (CUgraphExec exec, CUgraph graph, CUgraphNode * node, int *how))                        \
    X(CUDA, cuGraphExecUpdate_v2, (CUgraphExec exec, CUgraph graph, void *how))

/* hooks_nccl.c: kernels of NCCL and NVSHMEM */
#define HOOKS_KERNEL(X)                                                                                                \
    X(CUDA, cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name))                           \
    X(CUDA, cuLibraryGetKernel, (CUkernel * kernel, CUlibrary library, const char *name))

/* hooks_stream.c */
#define HOOKS_STREAM(X)                                                                                                \
    X(CUDA, cuStreamBeginCapture, (CUstream stream))                                                                   \
    X(CUDA, cuStreamBeginCapture_ptsz, (CUstream stream))                                                              \
    X(CUDA, cuStreamBeginCapture_v2, (CUstream stream, int mode))                                                      \
    X(CUDA, cuStreamBeginCapture_v2_ptsz, (CUstream stream, int mode))                                                 \
    X(CUDA, cuStreamBeginCaptureToGraph,                                                                               \
      (CUstream stream, CUgraph graph, const CUgraphNode *before, const void *edges, size_t count, int mode))          \
    X(CUDA, cuStreamBeginCaptureToGraph_ptsz,                                                                          \
      (CUstream stream, CUgraph graph, const CUgraphNode *before, const void *edges, size_t count, int mode))          \
    X(CUDA, cuStreamEndCapture, (CUstream stream, CUgraph * graph))                                                    \
    X(CUDA, cuStreamEndCapture_ptsz, (CUstream stream, CUgraph * graph))                                               \
    X(CUDA, cuStreamDestroy, (CUstream stream))                                                                        \
    X(CUDA, cuStreamDestroy_v2, (CUstream stream))

/* hooks_asking.c */
#define HOOKS_ASKING(X)                                                                                                \
    X(CUDA, cuCtxSynchronize, (void))                                                                                  \
    X(CUDA, cuCtxSynchronize_v2, (CUcontext context))                                                                  \
    X(CUDA, cuStreamSynchronize, (CUstream stream))                                                                    \
    X(CUDA, cuStreamSynchronize_ptsz, (CUstream stream))                                                               \
    X(CUDA, cuStreamQuery, (CUstream stream))                                                                          \
    X(CUDA, cuStreamQuery_ptsz, (CUstream stream))                                                                     \
    X(CUDA, cuEventSynchronize, (CUevent event))                                                                       \
    X(CUDA, cuEventQuery, (CUevent event))                                                                             \
    X(CUDA, cuEventElapsedTime, (float *milliseconds, CUevent begin, CUevent end))                                     \
    X(CUDA, cuEventElapsedTime_v2, (float *milliseconds, CUevent begin, CUevent end))

/* hooks_context.c */
#define HOOKS_CONTEXT(X)                                                                                               \
    X(CUDA, cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                                          \
    X(CUDA, cuDevicePrimaryCtxRelease, (CUdevice device))                                                              \
    X(CUDA, cuDevicePrimaryCtxRelease_v2, (CUdevice device))                                                           \
    X(CUDA, cuDevicePrimaryCtxReset, (CUdevice device))                                                                \
    X(CUDA, cuDevicePrimaryCtxReset_v2, (CUdevice device))                                                             \
    X(CUDA, cuCtxCreate, (CUcontext * context, unsigned int flags, CUdevice device))                                   \
    X(CUDA, cuCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice device))                                \
    X(CUDA, cuCtxCreate_v3, (CUcontext * context, void *affinities, int count, unsigned int flags, CUdevice device))   \
    X(CUDA, cuCtxCreate_v4, (CUcontext * context, void *parameters, unsigned int flags, CUdevice device))              \
    X(CUDA, cuGLCtxCreate, (CUcontext * context, unsigned int flags, CUdevice device))                                 \
    X(CUDA, cuGLCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice device))                              \
    X(CUDA, cuVDPAUCtxCreate,                                                                                          \
      (CUcontext * context, unsigned int flags, CUdevice device, uint32_t vdpau, void *entries))                       \
    X(CUDA, cuVDPAUCtxCreate_v2,                                                                                       \
      (CUcontext * context, unsigned int flags, CUdevice device, uint32_t vdpau, void *entries))                       \
    X(CUDA, cuCtxDestroy, (CUcontext context))                                                                         \
    X(CUDA, cuCtxDestroy_v2, (CUcontext context))                                                                      \
    X(CUDA, cuCtxDetach, (CUcontext context))                                                                          \
    X(CUDA, cuCtxSetLimit, (int limit, size_t value))                                                                  \
    X(CUDA, cuGreenCtxCreate, (CUgreenCtx * context, void *resources, CUdevice device, unsigned int flags))            \
    X(CUDA, cuGreenCtxDestroy, (CUgreenCtx context))

/* hooks_report.c */
#define HOOKS_REPORT(X)                                                                                                \
    X(CUDA, cuMemGetInfo, (unsigned int *free, unsigned int *total))                                                   \
    X(CUDA, cuMemGetInfo_v2, (size_t *free, size_t *total))                                                            \
    X(CUDA, cuDeviceTotalMem, (unsigned int *bytes, CUdevice device))                                                  \
    X(CUDA, cuDeviceTotalMem_v2, (size_t *bytes, CUdevice device))                                                     \
    X(NVML, nvmlDeviceGetMemoryInfo, (nvmlDevice_t device, nvmlMemory_t * memory))                                     \
    X(NVML, nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t device, nvmlMemory_v2_t * memory))

/* hooks_nccl.c */
#define HOOKS_NCCL(X)                                                                                                  \
    X(NCCL, ncclAllGather, (const void *from, void *to, size_t count, int type, ncclComm_t comm, CUstream stream))     \
    X(NCCL, ncclAllGatherConfig,                                                                                       \
      (const void *from, void *to, size_t count, int type, ncclComm_t comm, CUstream stream, const void *config))      \
    X(NCCL, ncclAlltoAll, (const void *from, void *to, size_t count, int type, ncclComm_t comm, CUstream stream))      \
    X(NCCL, ncclAlltoAllConfig,                                                                                        \
      (const void *from, void *to, size_t count, int type, ncclComm_t comm, CUstream stream, const void *config))      \
    X(NCCL, ncclAllReduce,                                                                                             \
      (const void *from, void *to, size_t count, int type, int more, ncclComm_t comm, CUstream stream))                \
    X(NCCL, ncclAllReduceConfig,                                                                                       \
      (const void *from, void *to, size_t count, int type, int more, ncclComm_t comm, CUstream stream,                 \
       const void *config))                                                                                            \
    X(NCCL, ncclReduceScatter,                                                                                         \
      (const void *from, void *to, size_t count, int type, int more, ncclComm_t comm, CUstream stream))                \
    X(NCCL, ncclReduceScatterConfig,                                                                                   \
      (const void *from, void *to, size_t count, int type, int more, ncclComm_t comm, CUstream stream,                 \
       const void *config))                                                                                            \
    X(NCCL, ncclBroadcast,                                                                                             \
      (const void *from, void *to, size_t count, int type, int more, ncclComm_t comm, CUstream stream))                \
    X(NCCL, ncclBroadcastConfig,                                                                                       \
      (const void *from, void *to, size_t count, int type, int more, ncclComm_t comm, CUstream stream,                 \
       const void *config))                                                                                            \
    X(NCCL, ncclGather,                                                                                                \
      (const void *from, void *to, size_t count, int type, int more, ncclComm_t comm, CUstream stream))                \
    X(NCCL, ncclGatherConfig,                                                                                          \
      (const void *from, void *to, size_t count, int type, int more, ncclComm_t comm, CUstream stream,                 \
       const void *config))                                                                                            \
    X(NCCL, ncclScatter,                                                                                               \
      (const void *from, void *to, size_t count, int type, int more, ncclComm_t comm, CUstream stream))                \
    X(NCCL, ncclScatterConfig,                                                                                         \
      (const void *from, void *to, size_t count, int type, int more, ncclComm_t comm, CUstream stream,                 \
       const void *config))                                                                                            \
    X(NCCL, ncclReduce,                                                                                                \
      (const void *from, void *to, size_t count, int type, int operator, int root, ncclComm_t comm, CUstream stream))  \
    X(NCCL, ncclReduceConfig,                                                                                          \
      (const void *from, void *to, size_t count, int type, int operator, int root, ncclComm_t comm, CUstream stream,   \
       const void *config))                                                                                            \
    X(NCCL, ncclBcast, (void *buffer, size_t count, int type, int root, ncclComm_t comm, CUstream stream))             \
    X(NCCL, ncclSend, (const void *from, size_t count, int type, int peer, ncclComm_t comm, CUstream stream))          \
    X(NCCL, ncclRecv, (void *to, size_t count, int type, int peer, ncclComm_t comm, CUstream stream))                  \
    X(NCCL, ncclGroupStart, (void))                                                                                    \
    X(NCCL, ncclGroupEnd, (void))                                                                                      \
    X(NCCL, ncclGroupSimulateEnd, (void *information))                                                                 \
    X(NCCL, ncclDevCommCreate, (ncclComm_t comm, const void *needs, void *made))                                       \
    X(NCCL, ncclPutSignal,                                                                                             \
      (const void *from, size_t count, int type, int peer, void *window, size_t offset, int signal, int context,       \
       unsigned flags, ncclComm_t comm, CUstream stream))                                                              \
    X(NCCL, ncclSignal, (int peer, int signal, int context, unsigned flags, ncclComm_t comm, CUstream stream))         \
    X(NCCL, ncclWaitSignal, (int count, void *signals, ncclComm_t comm, CUstream stream))

/* hooks_communicator.c */
#define HOOKS_COMMUNICATOR(X)                                                                                          \
    X(NCCL, ncclCommInitRank, (ncclComm_t * made, int ranks, ncclUniqueId id, int rank))                               \
    X(NCCL, ncclCommInitRankConfig, (ncclComm_t * made, int ranks, ncclUniqueId id, int rank, void *config))           \
    X(NCCL, ncclCommInitRankScalable,                                                                                  \
      (ncclComm_t * made, int ranks, int rank, int count, ncclUniqueId *ids, void *config))                            \
    X(NCCL, ncclCommInitAll, (ncclComm_t * made, int count, const int *devices))                                       \
    X(NCCL, ncclCommSplit, (ncclComm_t parent, int color, int key, ncclComm_t *made, void *config))                    \
    X(NCCL, ncclCommShrink, (ncclComm_t parent, int *excluded, int count, ncclComm_t *made, void *config, int flags))  \
    X(NCCL, ncclCommGrow,                                                                                              \
      (ncclComm_t parent, int ranks, const ncclUniqueId *id, int rank, ncclComm_t *made, void *config))                \
    X(NCCL, ncclCommFinalize, (ncclComm_t comm))                                                                       \
    X(NCCL, ncclCommDestroy, (ncclComm_t comm))                                                                        \
    X(NCCL, ncclCommAbort, (ncclComm_t comm))                                                                          \
    X(NCCL, ncclCommRevoke, (ncclComm_t comm, int flags))

/* Calls that the shim makes and does not intercept. */
#define USED(X)                                                                                                        \
    X(CUDA, cuCtxPushCurrent_v2, (CUcontext context))                                                                  \
    X(CUDA, cuCtxPopCurrent_v2, (CUcontext * context))                                                                 \
    X(CUDA, cuDeviceGetCount, (int *count))                                                                            \
    X(CUDA, cuDeviceGetMemPool, (CUmemoryPool * handle, CUdevice device))                                              \
    X(CUDA, cuDeviceGetDefaultMemPool, (CUmemoryPool * handle, CUdevice device))                                       \
    X(CUDA, cuMemPoolGetAttribute, (CUmemoryPool handle, int attribute, void *value))                                  \
    X(CUDA, cuDeviceGetGraphMemAttribute, (CUdevice device, int attribute, void *value))                               \
    X(CUDA, cuStreamGetDevice, (CUstream stream, CUdevice * device))                                                   \
    X(CUDA, cuStreamGetCtx, (CUstream stream, CUcontext * context))                                                    \
    X(CUDA, cuStreamIsCapturing, (CUstream stream, int *status))                                                       \
    X(CUDA, cuStreamGetCaptureInfo, (CUstream stream, int *status, uint64_t *number))                                  \
    X(CUDA, cuGraphGetNodes, (CUgraph graph, CUgraphNode * nodes, size_t *count))                                      \
    X(CUDA, cuGraphNodeGetType, (CUgraphNode node, int *type))                                                         \
    X(CUDA, cuGraphMemAllocNodeGetParams, (CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS * parameters))                 \
    X(CUDA, cuGraphMemFreeNodeGetParams, (CUgraphNode node, CUdeviceptr * address))                                    \
    X(CUDA, cuGraphChildGraphNodeGetGraph, (CUgraphNode node, CUgraph * graph))                                        \
    X(CUDA, cuArrayGetMemoryRequirements, (CUDA_ARRAY_MEMORY_REQUIREMENTS * needs, CUarray array, CUdevice device))    \
    X(CUDA, cuMipmappedArrayGetMemoryRequirements,                                                                     \
      (CUDA_ARRAY_MEMORY_REQUIREMENTS * needs, CUmipmappedArray array, CUdevice device))                               \
    X(CUDA, cuCtxGetCurrent, (CUcontext * context))                                                                    \
    X(CUDA, cuCtxGetDevice, (CUdevice * device))                                                                       \
    X(CUDA, cuCtxGetFlags, (unsigned int *flags))                                                                      \
    X(CUDA, cuCtxGetApiVersion, (CUcontext context, unsigned int *version))                                            \
    X(CUDA, cuCtxGetLimit, (size_t *value, int limit))                                                                 \
    X(CUDA, cuDeviceGetUuid, (CUuuid * uuid, CUdevice device))                                                         \
    X(CUDA, cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice device))                                                      \
    X(CUDA, cuDevicePrimaryCtxGetState, (CUdevice device, unsigned int *flags, int *active))                           \
    X(NVML, nvmlDeviceGetUUID, (nvmlDevice_t device, char *uuid, unsigned int length))                                 \
    X(NCCL, ncclCommCount, (ncclComm_t comm, int *count))                                                              \
    X(NCCL, ncclCommUserRank, (ncclComm_t comm, int *rank))

/* ---- made from the tables ---- */

enum hook {
#define NUMBER(library, name, parameters) HOOK_##name,
    HOOKS(NUMBER)
#undef NUMBER
        HOOK_COUNT,
    LAST_HOOK = HOOK_COUNT - 1,
#define NUMBER(library, name, parameters) HOOK_##name,
    USED(NUMBER)
#undef NUMBER
        CALL_COUNT
};

#define DECLARE(library, name, parameters)                                                                             \
    typedef int name##_function parameters;                                                                            \
    __attribute__((visibility("default"))) name##_function name;
HOOKS(DECLARE)
#undef DECLARE

#define DECLARE(library, name, parameters) typedef int name##_function parameters;
USED(DECLARE)
#undef DECLARE

#endif
