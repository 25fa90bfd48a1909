/* Files by SFTP, version 3 (draft-ietf-secsh-filexfer-02), with OpenSSH's extensions posix-rename, hardlink, fsync and
 * limits. Runs inside a container, as its user, on the standard streams: it may do what that user may, and needs
 * nothing of the image. Static, no allocation but of handles, one request after the other. With a path, it serves the
 * UNIX socket there instead. */
#define _GNU_SOURCE
#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "connect.h"
#include "message.h"

static void put_handle(uint32_t id, int file, DIR *folder, int appends) {
    uint32_t free_one = 0;
    while (free_one < HANDLES && (handles[free_one].file >= 0 || handles[free_one].folder)) free_one++;
    if (free_one == HANDLES) {
        if (folder)
            closedir(folder);
        else
            close(file);
        errno = EMFILE;
        answer(id, -1);
        return;
    }
    handles[free_one].file = folder ? -1 : file;
    handles[free_one].folder = folder;
    handles[free_one].appends = appends;
    begin(HANDLE, id);
    put32(4);
    put32(free_one);
}

/* Which of `handles` a request means; -1: none. */
static int handle(void) {
    uint32_t length, number = HANDLES;
    const uint8_t *said = bytes(&length);
    if (length == 4) memcpy(&number, said, 4), number = be32toh(number);
    return number < HANDLES && (handles[number].file >= 0 || handles[number].folder) ? (int)number : -1;
}

static int file_of(int number) {
    if (number >= 0 && handles[number].folder) return dirfd(handles[number].folder);
    return number < 0 ? -1 : handles[number].file;
}

static void open_file(uint32_t id) {
    char name[PATH_MAX];
    path(name);
    uint32_t asked = u32();
    struct attributes said = attributes();
    int flags = (asked & F_WRITE ? asked & F_READ ? O_RDWR : O_WRONLY : O_RDONLY) | O_CLOEXEC | O_NOCTTY;
    if (asked & F_CREATE) flags |= O_CREAT | (asked & F_EXCLUSIVE ? O_EXCL : 0);
    if (asked & F_TRUNCATE) flags |= O_TRUNC;
    if (asked & F_APPEND) flags |= O_APPEND;
    if (bad) return;
    int file = open(name, flags, said.has & HAS_MODE ? said.mode & 07777 : 0666);
    if (file < 0)
        answer(id, -1);
    else
        put_handle(id, file, NULL, !!(asked & F_APPEND));
}

static void read_file(uint32_t id) {
    int number = handle();
    uint64_t offset = u64();
    uint32_t length = u32();
    begin(DATA, id);
    put32(0);
    size_t start = filled;
    ssize_t got = pread(file_of(number), out + start, length < LONGEST_DATA ? length : LONGEST_DATA, offset);
    if (got < 0 && errno == ESPIPE)
        got = read(file_of(number), out + start, length < LONGEST_DATA ? length : LONGEST_DATA);
    if (got < 0) return answer(id, -1);
    if (!got) return put_status(id, END_OF_FILE, "");
    filled = start - 4;
    put32(got);
    filled += got;
}

static void write_file(uint32_t id) {
    int number = handle(), file = file_of(number);
    uint64_t offset = u64();
    uint32_t length;
    const uint8_t *data = bytes(&length);
    if (bad) return;
    while (length) {
        ssize_t put_down =
            number >= 0 && handles[number].appends ? write(file, data, length) : pwrite(file, data, length, offset);
        if (put_down < 0 && errno == ESPIPE) put_down = write(file, data, length);
        if (put_down < 0) return answer(id, -1);
        data += put_down, offset += put_down, length -= put_down;
    }
    answer(id, 0);
}

/* Of `file`, or if that is negative of `name`. */
static int set(int file, const char *name, const struct attributes *said) {
    struct timespec times[2] = {{.tv_sec = said->atime}, {.tv_sec = said->mtime}};
    if (said->has & HAS_SIZE && (file < 0 ? truncate(name, said->size) : ftruncate(file, said->size))) return -1;
    if (said->has & HAS_IDS && (file < 0 ? chown(name, said->uid, said->gid) : fchown(file, said->uid, said->gid)))
        return -1;
    if (said->has & HAS_MODE && (file < 0 ? chmod(name, said->mode & 07777) : fchmod(file, said->mode & 07777)))
        return -1;
    if (said->has & HAS_TIMES && (file < 0 ? utimensat(AT_FDCWD, name, times, 0) : futimens(file, times))) return -1;
    return 0;
}

/* As ls -l has it: clients show this text and read the attributes. */
static void put_entry(const char *name, const struct stat *found) {
    char line[NAME_MAX + 128], when[32] = "", mode[11] = "?rwxrwxrwx";
    struct tm broken;
    if (localtime_r(&found->st_mtime, &broken)) strftime(when, sizeof when, "%b %e %Y", &broken);
    mode[0] = S_ISDIR(found->st_mode) ? 'd' : S_ISLNK(found->st_mode) ? 'l' : S_ISREG(found->st_mode) ? '-' : '?';
    for (int bit = 0; bit < 9; bit++)
        if (!(found->st_mode >> (8 - bit) & 1)) mode[1 + bit] = '-';
    snprintf(line, sizeof line, "%s %3lu %-8u %-8u %8llu %s %s", mode, (unsigned long)found->st_nlink, found->st_uid,
             found->st_gid, (unsigned long long)found->st_size, when, name);
    put_text(name);
    put_text(line);
    put_attributes(found);
}

static void read_folder(uint32_t id) {
    int number = handle();
    if (number < 0 || !handles[number].folder) return errno = EBADF, answer(id, -1);
    begin(NAME, id);
    put32(0);
    uint32_t count = 0;
    for (struct dirent *entry; count < NAMES && (entry = readdir(handles[number].folder));) {
        struct stat found;
        if (fstatat(dirfd(handles[number].folder), entry->d_name, &found, AT_SYMLINK_NOFOLLOW)) continue;
        put_entry(entry->d_name, &found);
        count++;
    }
    if (!count) return put_status(id, END_OF_FILE, "");
    uint32_t said = htobe32(count);
    memcpy(out + 9, &said, 4);
}

static void put_name(uint32_t id, const char *name) {
    struct stat nothing = {0};
    begin(NAME, id);
    put32(1);
    put_text(name);
    put_text(name);
    put_attributes(&nothing);
}

/* The whole path of what need not be there: its folder has to be, as for OpenSSH's. */
static void real_path(uint32_t id, char *name) {
    char found[PATH_MAX], *last = strrchr(name, '/');
    if (realpath(name, found)) return put_name(id, found);
    if (errno != ENOENT) return answer(id, -1);
    const char *rest = last ? last + 1 : name;
    char folder[PATH_MAX] = ".";
    if (last) snprintf(folder, sizeof folder, "%.*s", last == name ? 1 : (int)(last - name), name);
    if (!realpath(folder, found) || strlen(found) + strlen(rest) + 2 > sizeof found) return answer(id, -1);
    if (strcmp(found, "/")) strcat(found, "/");
    strcat(found, rest);
    put_name(id, found);
}

/* Version 3 refuses to replace what is there. */
static int rename_new(const char *from, const char *to) {
    if (!linkat(AT_FDCWD, from, AT_FDCWD, to, 0)) return unlink(from);
    if (errno == EEXIST) return -1;
    struct stat there;
    if (!lstat(to, &there)) return errno = EEXIST, -1;
    return rename(from, to);
}

static void extended(uint32_t id) {
    uint32_t length;
    const char *name = (const char *)bytes(&length);
    char one[PATH_MAX], other[PATH_MAX];
#define IS(text) (length == strlen(text) && !memcmp(name, text, length))
    if (IS("posix-rename@openssh.com")) {
        path(one), path(other);
        if (!bad) answer(id, rename(one, other));
    } else if (IS("hardlink@openssh.com")) {
        path(one), path(other);
        if (!bad) answer(id, link(one, other));
    } else if (IS("fsync@openssh.com")) {
        answer(id, fsync(file_of(handle())));
    } else if (IS("limits@openssh.com")) {
        begin(EXTENDED_REPLY, id);
        put64(LONGEST);
        put64(LONGEST_DATA);
        put64(LONGEST_DATA);
        put64(HANDLES);
    } else {
        put_status(id, UNSUPPORTED, "not supported");
    }
}

static void serve(uint8_t kind, uint32_t id) {
    char name[PATH_MAX], other[PATH_MAX];
    struct stat found;
    struct attributes said;
    DIR *folder;
    int number;
    switch (kind) {
        case OPEN:
            open_file(id);
            break;
        case READ:
            read_file(id);
            break;
        case WRITE:
            write_file(id);
            break;
        case READDIR:
            read_folder(id);
            break;
        case EXTENDED:
            extended(id);
            break;
        case CLOSE:
            if ((number = handle()) < 0) {
                errno = EBADF;
                answer(id, -1);
                break;
            }
            answer(id, handles[number].folder ? closedir(handles[number].folder) : close(handles[number].file));
            handles[number].file = -1;
            handles[number].folder = NULL;
            break;
        case STAT:
        case LSTAT:
        case FSTAT:
            if (kind == FSTAT  ? fstat(file_of(handle()), &found)
                : kind == STAT ? stat(path(name), &found)
                               : lstat(path(name), &found)) {
                answer(id, -1);
                break;
            }
            begin(ATTRS, id);
            put_attributes(&found);
            break;
        case SETSTAT:
            path(name);
            said = attributes();
            if (!bad) answer(id, set(-1, name, &said));
            break;
        case FSETSTAT:
            number = handle();
            said = attributes();
            if (number < 0) {
                errno = EBADF;
                answer(id, -1);
            } else
                answer(id, set(file_of(number), NULL, &said));
            break;
        case OPENDIR:
            if (!(folder = opendir(path(name))))
                answer(id, -1);
            else
                put_handle(id, -1, folder, 0);
            break;
        case REMOVE:
            answer(id, unlink(path(name)));
            break;
        case MKDIR:
            path(name);
            said = attributes();
            if (!bad) answer(id, mkdir(name, said.has & HAS_MODE ? said.mode & 07777 : 0777));
            break;
        case RMDIR:
            answer(id, rmdir(path(name)));
            break;
        case REALPATH:
            real_path(id, path(name));
            break;
        case RENAME:
            path(name), path(other);
            if (!bad) answer(id, rename_new(name, other));
            break;
        case READLINK: {
            ssize_t length = readlink(path(name), other, sizeof other - 1);
            if (length < 0) {
                answer(id, -1);
                break;
            }
            other[length] = 0;
            put_name(id, other);
            break;
        }
        case SYMLINK: /* OpenSSH has the two the other way round than the draft, and all follow it */
            path(name), path(other);
            if (!bad) answer(id, symlink(name, other));
            break;
        default:
            put_status(id, UNSUPPORTED, "not supported");
    }
}

static int whole(ssize_t (*pass)(int, void *, size_t), int file, uint8_t *data, size_t length) {
    while (length) {
        ssize_t passed = pass(file, data, length);
        if (passed < 0 && errno == EINTR) continue;
        if (passed <= 0) return -1;
        data += passed, length -= passed;
    }
    return 0;
}

static ssize_t write_out(int file, void *data, size_t length) { return write(file, data, length); }

int main(int count, char **words) {
    if (count > 1) return connect_to(words[1]);
    for (int number = 0; number < HANDLES; number++) handles[number].file = -1;
    for (;;) {
        uint32_t length;
        if (whole(read, 0, (uint8_t *)&length, sizeof length)) return 0;
        end = be32toh(length);
        if (!end || end > sizeof in || whole(read, 0, in, end)) return 1;
        at = 1;
        bad = 0;
        filled = 4;
        if (in[0] == INIT) {
            put8(VERSION);
            put32(3);
            const char *extensions[] = {"posix-rename@openssh.com", "hardlink@openssh.com", "fsync@openssh.com",
                                        "limits@openssh.com"};
            for (size_t n = 0; n < sizeof extensions / sizeof *extensions; n++) put_text(extensions[n]), put_text("1");
        } else {
            uint32_t id = u32();
            if (!bad) serve(in[0], id);
            if (bad) put_status(id, BAD_MESSAGE, "the message cannot be read");
        }
        uint32_t size = htobe32(filled - 4);
        memcpy(out, &size, sizeof size);
        if (whole(write_out, 1, out, filled)) return 0;
    }
}
