/* Preloaded into a trial's program (faster.py): says which large anonymous mappings are made by mmap of the C library,
 * and does to each what FASTER says: "huge" pages are advised, "prefault": as many threads as FASTER_THREADS write. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define LARGE (64UL << 20)
#define HUGEST (64UL << 30) /* what is larger is address space and no memory */
#define MOST_THREADS 32

struct part {
    char *at;
    size_t bytes;
};

static void *write_part(void *argument) {
    struct part *part = argument;
    madvise(part->at, part->bytes, MADV_POPULATE_WRITE);
    return NULL;
}

static void prefault(char *at, size_t bytes) {
    const char *given = getenv("FASTER_THREADS");
    size_t count = given ? strtoul(given, NULL, 10) : 1, each;
    pthread_t threads[MOST_THREADS];
    struct part parts[MOST_THREADS];
    if (count < 1 || count > MOST_THREADS) count = 1;
    each = (bytes / count + (2UL << 20) - 1) & ~((2UL << 20) - 1);
    size_t begun = 0;
    for (; begun < count && begun * each < bytes; begun++) {
        size_t left = bytes - begun * each;
        parts[begun] = (struct part){at + begun * each, left < each ? left : each};
        if (pthread_create(&threads[begun], NULL, write_part, &parts[begun])) break;
    }
    for (size_t thread = 0; thread < begun; thread++) pthread_join(threads[thread], NULL);
}

/* The driver asks for its image's memory with MAP_POPULATE: pages that are there by the time mmap returns stay small,
 * so they are asked for once huge ones are advised. */
static void *map(void *wanted, size_t bytes, int prot, int flags, int file, off_t offset) {
    const char *way = getenv("FASTER");
    bool later = way && *way && bytes >= LARGE && bytes <= HUGEST && (flags & MAP_POPULATE);
    void *at = (void *)syscall(SYS_mmap, wanted, bytes, prot, later ? flags & ~MAP_POPULATE : flags, file, offset);
    int before = errno;
    if (at == MAP_FAILED || !(flags & MAP_ANONYMOUS) || bytes < LARGE || bytes > HUGEST) return at;
    char line[128];
    const char *log = getenv("FASTER_LOG");
    int said = log ? open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
    if (said >= 0) {
        int length = snprintf(line, sizeof line, "%zu MiB, prot %d, flags %#x\n", bytes >> 20, prot, (unsigned)flags);
        if (write(said, line, (size_t)length) < 0) {
        }
        close(said);
    }
    if (way && strstr(way, "huge")) madvise(at, bytes, MADV_HUGEPAGE);
    if (way && strstr(way, "prefault") && (prot & PROT_WRITE) && !(flags & MAP_NORESERVE)) prefault(at, bytes);
    errno = before;
    return at;
}

void *mmap(void *at, size_t bytes, int prot, int flags, int file, off_t offset) {
    return map(at, bytes, prot, flags, file, offset);
}

void *mmap64(void *at, size_t bytes, int prot, int flags, int file, off_t offset) {
    return map(at, bytes, prot, flags, file, offset);
}
