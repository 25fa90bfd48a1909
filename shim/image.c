/* Where the driver puts what it moves off the cards: anonymous memory of the process itself, whose pages it asks for
 * together with the mapping (MAP_POPULATE). Such pages are small ones on most hosts, where huge pages are for those
 * that advise them. With huge ones 8 GiB leave an H100 in 2.5 s instead of 4.2 (docs/swapping.md).
 *
 * So while this process is moved, such a mapping is made without its pages, huge ones are advised, and the pages are
 * asked for then. All others go to the kernel as they are, at the cost of one comparison: by the system call, because
 * who is looked for by dlsym in here may be an allocator that waits for this very call. */
#define _GNU_SOURCE
#include "image.h"

#include <errno.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; one that does not know it leaves the pages to who writes them */
#endif
#define LARGE (64UL << 20)
#define IMAGE (MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE)
#define PUBLIC __attribute__((visibility("default")))

static _Atomic(const struct lease_page *) watched;

void image_watch(const struct lease_page *page) { atomic_store(&watched, page); }

static bool is_image(size_t bytes, int flags) {
    if ((flags & IMAGE) != IMAGE || bytes < LARGE) return false;
    const struct lease_page *page = atomic_load(&watched);
    return page && atomic_load(&page->moving);
}

PUBLIC void *mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset) {
    if (__builtin_expect(!is_image(bytes, flags), 1))
        return (void *)syscall(SYS_mmap, at, bytes, protection, flags, file, offset);
    void *image = (void *)syscall(SYS_mmap, at, bytes, protection, flags & ~MAP_POPULATE, file, offset);
    if (image == MAP_FAILED) return image;
    int saved = errno;
    madvise(image, bytes, MADV_HUGEPAGE);
    madvise(image, bytes, MADV_POPULATE_WRITE);
    errno = saved;
    return image;
}

PUBLIC void *mmap64(void *at, size_t bytes, int protection, int flags, int file, off64_t offset) {
    return mmap(at, bytes, protection, flags, file, offset);
}
