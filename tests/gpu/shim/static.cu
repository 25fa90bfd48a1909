/* A program with the runtime linked in statically: takes `argv[1]` MiB, computes, and checks; then takes until there is
 * no more; then computes again. Speaks as frameworks.py does. */
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <vector>

__global__ void fill(unsigned *data, size_t count) {
    for (size_t at = blockIdx.x * (size_t)blockDim.x + threadIdx.x; at < count; at += (size_t)gridDim.x * blockDim.x)
        data[at] = (unsigned)(at * 2654435761u) ^ 0x5bd1e995u;
}

static void compute(size_t bytes) {
    unsigned *data;
    size_t count = bytes / sizeof *data;
    if (cudaMalloc(&data, bytes) != cudaSuccess) exit(3);
    fill<<<256, 256>>>(data, count);
    std::vector<unsigned> host(1 << 20);
    unsigned long long sum = 0;
    for (size_t at = 0; at < count; at += host.size() * 16) {
        if (cudaMemcpy(host.data(), data + at, host.size() * sizeof *data, cudaMemcpyDeviceToHost) != cudaSuccess) exit(4);
        for (unsigned value : host) sum += value;
    }
    printf("result %llx\nmark\n", sum);
    fflush(stdout);
    getchar();
    cudaFree(data);
}

int main(int, char **argv) {
    size_t bytes = (size_t)atoll(argv[1]) << 20;
    compute(bytes);
    if (argv[2]) {
        std::vector<void *> held;
        void *pointer;
        cudaError_t error;
        while ((error = cudaMalloc(&pointer, 64 << 20)) == cudaSuccess) held.push_back(pointer);
        printf("beyond %s\n", cudaGetErrorName(error));
        for (void *one : held) cudaFree(one);
        cudaGetLastError();
        compute(bytes);
    }
    printf("end\n");
}
