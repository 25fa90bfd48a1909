#include "card.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CARD_MAGIC 0x53494d37u              /* "SIM7" */
#define HEAD offsetof(struct card, process) /* what is not all zero in a new card */
#define PAGE 4096ull

struct card *card;
int card_fd = -1;
bool card_at_home;

static uint64_t mapped; /* bytes of the card's file, when it was opened */
static _Atomic(struct card *) opened;
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t pid_namespace(void) {
    struct stat status;
    return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

static uint64_t file_size(const struct card *of) {
    const struct card_gpu *last = &of->gpu[of->gpus - 1];
    return last->owners + last->units * sizeof(uint32_t);
}

/* Whether a file of this size, which begins so, is a card and all of it is there. */
static bool whole(const struct card *head, off_t size) {
    return head->magic == CARD_MAGIC && head->gpus >= 1 && head->gpus <= CARD_GPUS && file_size(head) <= (uint64_t)size;
}

_Atomic uint32_t *card_owners(unsigned gpu) { return (_Atomic uint32_t *)((char *)card + card->gpu[gpu].owners); }

static void describe(struct card *new, unsigned gpus, uint64_t bytes, uint64_t free_delay_us) {
    uint64_t offset = (sizeof *new + PAGE - 1) / PAGE * PAGE;
    new->magic = CARD_MAGIC;
    new->gpus = gpus;
    new->home_namespace = pid_namespace();
    new->free_delay_us = free_delay_us;
    new->out_rate = 3ull << 29; /* 1.5 and 4.5 GiB/s: what an H100's processes of 4 GiB reached under the shim */
    new->in_rate = 9ull << 29;
    for (unsigned i = 0; i < gpus; i++) {
        struct card_gpu *gpu = &new->gpu[i];
        syscall(SYS_getrandom, gpu->uuid, sizeof gpu->uuid, 0);
        gpu->units = bytes / CARD_UNIT;
        gpu->owners = offset;
        offset += (gpu->units * sizeof(uint32_t) + PAGE - 1) / PAGE * PAGE;
    }
}

int card_create(const char *path, unsigned gpus, uint64_t bytes, uint64_t free_delay_us) {
    if (gpus < 1 || gpus > CARD_GPUS || bytes < CARD_UNIT || bytes > 1ull << 44) return EINVAL;
    static struct card new;
    memset(&new, 0, sizeof new);
    describe(&new, gpus, bytes, free_delay_us);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return errno;
    /* All of its room at once: on a disk that fills up later, who first came to a page of it would end by SIGBUS. */
    int failed = posix_fallocate(fd, 0, (off_t)file_size(&new));
    /* Programs in containers run as any user. */
    if (failed == 0 && fchmod(fd, 0666) != 0)
        failed = errno;
    else if (failed == 0 && pwrite(fd, &new, HEAD, 0) != (ssize_t)HEAD)
        failed = errno ? errno : EIO;
    close(fd);
    if (failed) unlink(path);
    return failed;
}

/* Programs on a card may put anything in its file's place: a FIFO would hold up whoever opens it, a link would lead a
 * scheduler of root's elsewhere. Returns -1 if it is not a file of its own. */
static int open_file(const char *path, int how, struct stat *status) {
    int fd = open(path, how | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return -1;
    if (fstat(fd, status) == 0 && S_ISREG(status->st_mode) && status->st_nlink == 1) return fd;
    close(fd);
    return -1;
}

static void open_card(void) {
    const char *path = getenv("GPUSHARE_SIM");
    if (path == NULL) return;
    struct stat status;
    int fd = open_file(path, O_RDWR, &status);
    if (fd < 0 || status.st_size < (off_t)sizeof(struct card)) return;
    void *memory = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return;
    struct card *found = memory;
    if (!whole(found, status.st_size)) return;
    card_fd = fd;
    card = found;
    mapped = file_size(found);
    card_at_home = pid_namespace() == card->home_namespace;
}

struct card *card_open(void) {
    struct card *found = atomic_load_explicit(&opened, memory_order_acquire);
    if (found != NULL) return found;
    HOLD(&open_lock);
    if (card == NULL) open_card();
    atomic_store_explicit(&opened, card, memory_order_release);
    return card;
}

struct card *card_hold(void) {
    pthread_mutex_lock(&open_lock);
    if (card == NULL) open_card();
    return card;
}

void card_release(void) { pthread_mutex_unlock(&open_lock); }

void card_close(void) {
    pthread_mutex_lock(&open_lock);
    if (card != NULL) {
        atomic_store(&opened, NULL);
        munmap(card, (size_t)mapped);
        close(card_fd);
        card = NULL;
        card_fd = -1;
    }
    pthread_mutex_unlock(&open_lock);
}

bool card_whole(void) {
    struct stat status;
    return fstat(card_fd, &status) == 0 && (uint64_t)status.st_size >= mapped && card->magic == CARD_MAGIC;
}

bool card_is_whole(const char *path) {
    static struct card head;
    struct stat status;
    int fd = open_file(path, O_RDONLY, &status);
    if (fd < 0) return false;
    bool there = pread(fd, &head, HEAD, 0) == (ssize_t)HEAD && whole(&head, status.st_size);
    close(fd);
    return there;
}

void card_uuid_text(const uint8_t *uuid, char *text) {
    text += sprintf(text, "GPU-");
    for (int i = 0; i < 16; i++)
        text += sprintf(text, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
}
