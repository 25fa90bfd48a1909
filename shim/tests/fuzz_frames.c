/* libFuzzer: what the shim reads from its socket. The first byte chooses the handshake or the frames after it. */
#define _GNU_SOURCE
#include "../dial.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int ends[2];
    struct wire_frame frame;
    if (size < 1 || size > 4096) return 0;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0) abort();
    if (send(ends[0], data + 1, size - 1, 0) != (ssize_t)size - 1) abort();
    shutdown(ends[0], SHUT_WR);
    struct own connection = own_take(ends[1]);
    if (data[0] % 2) {
        struct dialled dialled = dial_finish(&connection, data[0] % 4 == 3 ? 1 : 0);
        if (dialled.outcome == DIAL_OK) abort(); /* there was no file descriptor to map */
    } else {
        while (dial_read(&connection, &frame))
            if (frame.size != sizeof frame) abort();
    }
    own_close(&connection);
    close(ends[0]);
    return 0;
}
