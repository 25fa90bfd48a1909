/* Prints how long this process took from its start (the argument: CLOCK_MONOTONIC in ns) to its first allocation. */
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <time.h>

int main(int, char **argv) {
    void *pointer;
    timespec time;
    if (cudaMalloc(&pointer, 1 << 20) != cudaSuccess) return 1;
    clock_gettime(CLOCK_MONOTONIC, &time);
    printf("%lld\n", (long long)time.tv_sec * 1000000000 + time.tv_nsec - atoll(argv[1]));
}
