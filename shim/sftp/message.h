/* What SFTP's messages are made of: a request that is read, and an answer that is written. Included once. */
#pragma once
#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LONGEST = 256 << 10, LONGEST_DATA = LONGEST - 1024, HANDLES = 256, NAMES = 100 };

enum {
    INIT = 1,
    VERSION,
    OPEN,
    CLOSE,
    READ,
    WRITE,
    LSTAT,
    FSTAT,
    SETSTAT,
    FSETSTAT,
    OPENDIR,
    READDIR,
    REMOVE,
    MKDIR,
    RMDIR,
    REALPATH,
    STAT,
    RENAME,
    READLINK,
    SYMLINK,
    STATUS = 101,
    HANDLE,
    DATA,
    NAME,
    ATTRS,
    EXTENDED = 200,
    EXTENDED_REPLY
};
enum { OK, END_OF_FILE, NO_SUCH_FILE, DENIED, FAILURE, BAD_MESSAGE, UNSUPPORTED = 8 };
enum { HAS_SIZE = 1, HAS_IDS = 2, HAS_MODE = 4, HAS_TIMES = 8, HAS_MORE = 0x80000000 };
enum { F_READ = 1, F_WRITE = 2, F_APPEND = 4, F_CREATE = 8, F_TRUNCATE = 16, F_EXCLUSIVE = 32 };

/* A request that is read, and an answer that is written; `bad` once a request said less than it had to. */
static uint8_t in[LONGEST], out[LONGEST + 64];
static size_t at, end, filled;
static int bad;

static struct {
    int file;
    DIR *folder;
    int appends;
} handles[HANDLES];

struct attributes {
    uint32_t has, uid, gid, mode, atime, mtime;
    uint64_t size;
};

static uint32_t u32(void) {
    uint32_t value = 0;
    if (end - at < sizeof value) return bad = 1, 0;
    memcpy(&value, in + at, sizeof value);
    at += sizeof value;
    return be32toh(value);
}

static uint64_t u64(void) {
    uint64_t high = u32();
    return high << 32 | u32();
}

static const uint8_t *bytes(uint32_t *length) {
    *length = u32();
    if (bad || end - at < *length) return bad = 1, *length = 0, in;
    at += *length;
    return in + at - *length;
}

/* A path, in its own memory of PATH_MAX. An empty one is the folder that we were started in. */
static char *path(char *into) {
    uint32_t length;
    const uint8_t *text = bytes(&length);
    if (length >= PATH_MAX || memchr(text, 0, length)) return bad = 1, into[0] = 0, into;
    memcpy(into, text, length);
    into[length] = 0;
    if (!length) strcpy(into, ".");
    return into;
}

static struct attributes attributes(void) {
    struct attributes said = {.has = u32()};
    if (said.has & HAS_SIZE) said.size = u64();
    if (said.has & HAS_IDS) said.uid = u32(), said.gid = u32();
    if (said.has & HAS_MODE) said.mode = u32();
    if (said.has & HAS_TIMES) said.atime = u32(), said.mtime = u32();
    if (said.has & HAS_MORE)
        for (uint32_t left = u32(), length; left-- && !bad;) bytes(&length), bytes(&length);
    return said;
}

static void put(const void *data, size_t length) {
    if (filled + length > sizeof out) abort();
    memcpy(out + filled, data, length);
    filled += length;
}
static void put8(uint8_t value) { put(&value, 1); }
static void put32(uint32_t value) {
    value = htobe32(value);
    put(&value, 4);
}
static void put64(uint64_t value) {
    value = htobe64(value);
    put(&value, 8);
}
static void put_text(const char *text) {
    put32(strlen(text));
    put(text, strlen(text));
}

static void put_attributes(const struct stat *found) {
    put32(HAS_SIZE | HAS_IDS | HAS_MODE | HAS_TIMES);
    put64(found->st_size);
    put32(found->st_uid);
    put32(found->st_gid);
    put32(found->st_mode);
    put32(found->st_atime);
    put32(found->st_mtime);
}

static void begin(uint8_t kind, uint32_t id) {
    filled = 4;
    put8(kind);
    put32(id);
}

static void put_status(uint32_t id, uint32_t code, const char *why) {
    begin(STATUS, id);
    put32(code);
    put_text(why);
    put_text("");
}

/* By what a system call has said: 0 is good. */
static void answer(uint32_t id, int result) {
    int number = result ? errno : 0;
    put_status(id,
               !number                                 ? OK
               : number == ENOENT || number == ENOTDIR ? NO_SUCH_FILE
               : number == EACCES || number == EPERM   ? DENIED
                                                       : FAILURE,
               number ? strerror(number) : "");
}
