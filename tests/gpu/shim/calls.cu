/* What calls cost, in nanoseconds: one line "name value" per case. Run natively and under the shim, in turns.
 *
 *   calls         the runtime API's calls, each the median of many
 *   calls pairs   inside one process that has the shim loaded: the driver's own function against the shim's wrapper,
 *                 block by block in turns, so that nothing else differs: "name native shimmed"
 *   calls threads 1, 16 and 64 threads allocating and freeing: "name calls-per-second"
 */
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        auto result_ = (call);                                                                                         \
        if ((int)result_ != 0) {                                                                                       \
            fprintf(stderr, "%s: error %d\n", #call, (int)result_);                                                    \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static double now() {
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
}

static void report(const char *name, int times, const std::function<double()> &once) {
    std::vector<double> values;
    for (int warm = 0; warm < times / 10 + 1; warm++) once();
    for (int time = 0; time < times; time++) values.push_back(once());
    printf("%s %.1f\n", name, median(values));
}

__global__ void nothing() {}

/* cudaMalloc of `bytes`; the free is not part of the time. */
static std::function<double()> one_malloc(size_t bytes) {
    return [bytes] {
        void *pointer;
        double begin = now();
        CHECK(cudaMalloc(&pointer, bytes));
        double end = now();
        CHECK(cudaFree(pointer));
        return end - begin;
    };
}

/* So short that only many of them together can be timed. */
static std::function<double()> many(int times, const std::function<void()> &call) {
    return [=] {
        double begin = now();
        for (int time = 0; time < times; time++) call();
        return (now() - begin) / times;
    };
}

static void keep_all() {
    cudaMemPool_t pool;
    uint64_t all = UINT64_MAX;
    CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
    CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all));
}

static void runtime_calls() {
    void *held, *pointer;
    keep_all();
    report("malloc 1 KiB", 200, one_malloc(1 << 10));
    report("malloc 64 KiB", 200, one_malloc(64 << 10));
    report("malloc 1 MiB", 200, one_malloc(1 << 20));
    report("malloc 2 MiB", 200, one_malloc(2 << 20));
    report("malloc 128 MiB", 50, one_malloc(128 << 20));
    report("malloc 1 GiB", 20, one_malloc(1ull << 30));
    report("malloc 8 GiB", 5, one_malloc(8ull << 30));
    CHECK(cudaMalloc(&held, 4 << 10));
    report("malloc 4 KiB inside", 500, one_malloc(4 << 10));
    CHECK(cudaMallocAsync(&pointer, 8 << 20, 0));
    CHECK(cudaFreeAsync(pointer, 0));
    report("malloc async pair 1 MiB", 100, many(100, [&] {
               CHECK(cudaMallocAsync(&pointer, 1 << 20, 0));
               CHECK(cudaFreeAsync(pointer, 0));
           }));
    size_t free_bytes, total;
    report("mem get info", 50, many(50, [&] { CHECK(cudaMemGetInfo(&free_bytes, &total)); }));
    report("launch", 50, [&] {
        double begin = now();
        for (int time = 0; time < 200; time++) nothing<<<1, 1>>>();
        double end = now();
        CHECK(cudaDeviceSynchronize());
        return (end - begin) / 200;
    });
    CHECK(cudaFree(held));
}

/* ---- both in one process ---- */

/* The driver's own function, by the C library's dlsym rather than the preloaded one. */
template <class Function> static Function *own(const char *name) {
    using Dlsym = void *(void *, const char *);
    static Dlsym *dlsym_ = (Dlsym *)dlvsym(dlopen("libc.so.6", RTLD_LAZY), "dlsym", "GLIBC_2.2.5");
    return (Function *)dlsym_(dlopen("libcuda.so.1", RTLD_LAZY), name);
}
template <class Function> static Function *seen(const char *name) {
    return (Function *)dlsym(dlopen("libcuda.so.1", RTLD_LAZY), name);
}

static void tell(const char *name, const std::vector<double> &native, const std::vector<double> &shimmed) {
    std::vector<double> difference;
    for (size_t at = 0; at < native.size(); at++) difference.push_back(shimmed[at] - native[at]);
    printf("%s %.1f %.1f %.1f\n", name, median(native), median(shimmed), median(difference));
}

static void compare(const char *name, int times, const std::function<void()> &native,
                    const std::function<void()> &shimmed) {
    std::vector<double> a, b;
    for (int round = 0; round < 1000; round++) {
        a.push_back(many(times, native)());
        b.push_back(many(times, shimmed)());
    }
    tell(name, a, b);
}

/* 4 KiB blocks inside a live one of 2 MiB, many taken and then all freed, so that each call has a time of its own. */
static void compare_inside(decltype(cuMemAlloc_v2) *alloc_n, decltype(cuMemFree_v2) *free_n,
                           decltype(cuMemAlloc_v2) *alloc_s, decltype(cuMemFree_v2) *free_s) {
    CUdeviceptr pointers[100];
    std::vector<double> took[2], freed[2];
    for (int round = 0; round < 2000; round++) {
        auto *alloc = round % 2 ? alloc_s : alloc_n;
        auto *free = round % 2 ? free_s : free_n;
        double begin = now();
        for (CUdeviceptr &pointer : pointers) CHECK(alloc(&pointer, 4096));
        double between = now();
        for (CUdeviceptr pointer : pointers) CHECK(free(pointer));
        double end = now();
        took[round % 2].push_back((between - begin) / 100);
        freed[round % 2].push_back((end - between) / 100);
    }
    tell("alloc 4 KiB inside", took[0], took[1]);
    tell("free 4 KiB inside", freed[0], freed[1]);
}

static void both_in_one() {
    CUdeviceptr held, pointer;
    CHECK(cudaFree(0));
    keep_all();
    auto *alloc_n = own<decltype(cuMemAlloc_v2)>("cuMemAlloc_v2"), *alloc_s = seen<decltype(cuMemAlloc_v2)>("cuMemAlloc_v2");
    auto *free_n = own<decltype(cuMemFree_v2)>("cuMemFree_v2"), *free_s = seen<decltype(cuMemFree_v2)>("cuMemFree_v2");
    auto *async_n = own<decltype(cuMemAllocAsync)>("cuMemAllocAsync"), *async_s = seen<decltype(cuMemAllocAsync)>("cuMemAllocAsync");
    auto *drop_n = own<decltype(cuMemFreeAsync)>("cuMemFreeAsync"), *drop_s = seen<decltype(cuMemFreeAsync)>("cuMemFreeAsync");
    auto *info_n = own<decltype(cuMemGetInfo_v2)>("cuMemGetInfo_v2"), *info_s = seen<decltype(cuMemGetInfo_v2)>("cuMemGetInfo_v2");
    auto *current = own<decltype(cuCtxGetCurrent)>("cuCtxGetCurrent");
    if (alloc_n == alloc_s) {
        fprintf(stderr, "the shim is not loaded\n");
        exit(1);
    }
    CHECK(alloc_s(&held, 4096));
    compare_inside(alloc_n, free_n, alloc_s, free_s);
    compare("alloc+free 4 KiB inside", 50, [&] { CHECK(alloc_n(&pointer, 4096)); CHECK(free_n(pointer)); },
            [&] { CHECK(alloc_s(&pointer, 4096)); CHECK(free_s(pointer)); });
    CHECK(async_s(&pointer, 8 << 20, 0));
    CHECK(drop_s(pointer, 0));
    compare("async pair 1 MiB", 100, [&] { CHECK(async_n(&pointer, 1 << 20, 0)); CHECK(drop_n(pointer, 0)); },
            [&] { CHECK(async_s(&pointer, 1 << 20, 0)); CHECK(drop_s(pointer, 0)); });
    size_t a, b;
    compare("mem get info", 20, [&] { CHECK(info_n(&a, &b)); }, [&] { CHECK(info_s(&a, &b)); });
    CUcontext context;
    compare("(cuCtxGetCurrent twice)", 1000, [&] { CHECK(current(&context)); }, [&] { CHECK(current(&context)); });
}

/* ---- many threads ---- */

static void threads() {
    CHECK(cudaFree(0));
    keep_all();
    void *held;
    CHECK(cudaMalloc(&held, 4096));
    for (bool async : {false, true}) {
        for (int count : {1, 16, 64}) {
            std::atomic<bool> go{false}, stop{false};
            std::atomic<long> done{0};
            std::vector<std::thread> all;
            for (int index = 0; index < count; index++)
                all.emplace_back([&] {
                    cudaStream_t stream;
                    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
                    while (!go) std::this_thread::yield();
                    long mine = 0;
                    for (void *pointer; !stop; mine++) {
                        CHECK(async ? cudaMallocAsync(&pointer, 1 << 20, stream) : cudaMalloc(&pointer, 4096));
                        CHECK(async ? cudaFreeAsync(pointer, stream) : cudaFree(pointer));
                    }
                    done += mine;
                });
            double begin = now();
            go = true;
            std::this_thread::sleep_for(std::chrono::milliseconds(120));
            stop = true;
            for (auto &thread : all) thread.join();
            printf("%s, %d threads %.0f\n", async ? "async pairs" : "pairs", count, done / ((now() - begin) / 1e9));
        }
    }
}

int main(int argc, char **argv) {
    std::string what = argc > 1 ? argv[1] : "";
    what == "pairs" ? both_in_one() : what == "threads" ? threads() : runtime_calls();
}
