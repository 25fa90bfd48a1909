/* What the shim takes for granted about the driver, asked of the driver: one line each. Run without the shim. */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <dlfcn.h>

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        CUresult result_ = (call);                                                                                     \
        if (result_ != CUDA_SUCCESS) printf("%s: error %d\n", #call, (int)result_);                                    \
    } while (0)

static unsigned long long reserved(CUmemoryPool pool) {
    unsigned long long value = 0;
    CHECK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value));
    return value >> 10;
}
static unsigned long long of_graphs(CUdevice device) {
    unsigned long long value = 0;
    CHECK(cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &value));
    return value >> 10;
}
static size_t used() {
    size_t free_bytes, total;
    CHECK(cuMemGetInfo(&free_bytes, &total));
    return (total - free_bytes) >> 10;
}

static void pools(CUmemoryPool pool) {
    for (size_t bytes : {(size_t)1, (size_t)1 << 20, (size_t)33 << 20, (size_t)100 << 20, (size_t)3 << 30}) {
        CUdeviceptr pointer;
        CHECK(cuMemAllocAsync(&pointer, bytes, 0));
        printf("pool: after an allocation of %zu KiB it has reserved %llu KiB", bytes >> 10, reserved(pool));
        CHECK(cuMemFreeAsync(pointer, 0));
        CHECK(cuStreamSynchronize(0));
        printf(", after its free and a synchronisation %llu KiB\n", reserved(pool));
    }
}

__global__ void spin(long long cycles) {
    for (long long begin = clock64(); clock64() - begin < cycles;) continue;
}

/* A piece that was freed on the NULL stream of a context, which is busy: is it free on another context's? */
static void contexts(CUmemoryPool pool, CUcontext context, const char *kind, CUcontext other) {
    CUdeviceptr one, two;
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuMemAllocAsync(&one, 20 << 20, 0));
    spin<<<1, 1>>>(400000000);
    CHECK(cuMemFreeAsync(one, 0));
    unsigned long long before = reserved(pool);
    CHECK(cuCtxSetCurrent(other));
    CHECK(cuMemAllocAsync(&two, 20 << 20, 0));
    printf("a piece that a busy context's NULL stream has freed: the pool grows by %llu KiB for that of %s\n",
           reserved(pool) - before, kind);
    CHECK(cuMemFreeAsync(two, 0));
    CHECK(cuCtxSynchronize());
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuCtxSynchronize());
}

static void contexts(CUdevice device, CUmemoryPool pool, CUcontext primary) {
    CUcontext own, part;
    CUdevResource processors;
    CUdevResourceDesc all;
    CUgreenCtx green;
    CHECK(cuDeviceGetDevResource(device, &processors, CU_DEV_RESOURCE_TYPE_SM));
    CHECK(cuDevResourceGenerateDesc(&all, &processors, 1));
    CHECK(cuGreenCtxCreate(&green, all, device, CU_GREEN_CTX_DEFAULT_STREAM));
    CHECK(cuCtxFromGreenCtx(&part, green));
    CHECK(cuCtxCreate(&own, nullptr, 0, device));
    contexts(pool, primary, "a green context", part);
    contexts(pool, primary, "a context of the program's own", own);
    contexts(pool, primary, "the same context", primary);
    CHECK(cuCtxDestroy(own));
    CHECK(cuGreenCtxDestroy(green));
    CHECK(cuCtxSetCurrent(primary));
}

static void arrays(CUdevice device) {
    for (size_t side : {64, 100, 1000, 4096}) {
        CUDA_ARRAY3D_DESCRIPTOR shape = {side, side, 0, CU_AD_FORMAT_FLOAT, 4, 0}, twin = shape;
        CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {};
        CUarray array, deferred;
        twin.Flags = CUDA_ARRAY3D_DEFERRED_MAPPING;
        size_t before = used();
        CHECK(cuArray3DCreate(&deferred, &twin));
        size_t between = used();
        CHECK(cuArrayGetMemoryRequirements(&needs, deferred, device));
        CHECK(cuArray3DCreate(&array, &shape));
        printf("array %zu x %zu x 16 B = %zu KiB: the twin takes %zd KiB and says %zu KiB, the array takes %zd KiB\n",
               side, side, side * side * 16 >> 10, (ssize_t)(between - before), needs.size >> 10,
               (ssize_t)(used() - between));
        CHECK(cuArrayDestroy(array));
        CHECK(cuArrayDestroy(deferred));
    }
}

static void graphs(CUdevice device) {
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode node, end;
    CUDA_MEM_ALLOC_NODE_PARAMS parameters = {};
    parameters.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    parameters.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    parameters.bytesize = 100 << 20;
    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &parameters));
    CHECK(cuGraphAddMemFreeNode(&end, graph, &node, 1, parameters.dptr));
    printf("graph: after adding the node %llu KiB", of_graphs(device));
    CHECK(cuGraphInstantiate(&exec, graph, 0));
    printf(", instantiated %llu KiB", of_graphs(device));
    CHECK(cuGraphLaunch(exec, 0));
    printf(", launched %llu KiB", of_graphs(device));
    CHECK(cuStreamSynchronize(0));
    printf(", synchronised %llu KiB", of_graphs(device));
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
    printf(", destroyed %llu KiB", of_graphs(device));
    CHECK(cuDeviceGraphMemTrim(device));
    printf(", trimmed %llu KiB\n", of_graphs(device));
}

static void retained() {
    CUmemAllocationProp properties = {};
    CUmemGenericAllocationHandle handle, again;
    CUdeviceptr address;
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CHECK(cuMemCreate(&handle, 2 << 20, &properties, 0));
    CHECK(cuMemAddressReserve(&address, 2 << 20, 0, 0, 0));
    CHECK(cuMemMap(address, 2 << 20, 0, handle, 0));
    CHECK(cuMemRetainAllocationHandle(&again, (void *)address));
    printf("retained handle is %s\n", handle == again ? "the same" : "another");
}

/* Every intercepted call: is what cuGetProcAddress returns the exported symbol? */
static void addresses() {
    static const struct {
        const char *base, *symbol;
        int version;
        unsigned long long flags;
    } calls[] = {{"cuMemAlloc", "cuMemAlloc_v2", 13000, 0},
                 {"cuMemAlloc", "cuMemAlloc", 2000, 0},
                 {"cuMemFree", "cuMemFree_v2", 13000, 0},
                 {"cuMemAllocAsync", "cuMemAllocAsync", 13000, 0},
                 {"cuMemAllocAsync", "cuMemAllocAsync_ptsz", 13000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM},
                 {"cuMemCreate", "cuMemCreate", 13000, 0},
                 {"cuGraphLaunch", "cuGraphLaunch_ptsz", 13000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM},
                 {"cuGetProcAddress", "cuGetProcAddress_v2", 13000, 0},
                 {"cuMemSetMemPool", "cuMemSetMemPool", 13000, 0}};
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    for (const auto &call : calls) {
        void *address = nullptr;
        CHECK(cuGetProcAddress(call.base, &address, call.version, call.flags, nullptr));
        if (address != dlsym(driver, call.symbol))
            printf("cuGetProcAddress(%s) is not the symbol %s\n", call.base, call.symbol);
    }
}

int main() {
    CUdevice device;
    CUcontext context;
    CUmemoryPool pool;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuDeviceGetDefaultMemPool(&pool, device));
    CUuuid one, two;
    CHECK(cuDeviceGetUuid(&one, device));
    CHECK(cuDeviceGetUuid_v2(&two, device));
    printf("UUIDs of both calls are %s\n", memcmp(&one, &two, sizeof one) ? "different" : "the same");
    pools(pool);
    contexts(device, pool, context);
    arrays(device);
    graphs(device);
    retained();
    addresses();
}
