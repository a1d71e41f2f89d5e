/* A disk that fails on demand, for tests: put between a process and its C library with LD_PRELOAD.
 *
 * The rules lie in a file that is mapped into every process which has FAULTY_DISK in its environment; see faulty_disk.py,
 * which writes it. A call on a path that a rule names fails with the rule's errno and never reaches the kernel. The
 * layout is the same in both files.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 1, CREATE = 2, READ = 4, WRITE = 8, SYNC = 16, RENAME = 32, UNLINK = 64, MKDIR = 128, TRUNCATE = 256,
       SPACE = 512 };

#define RULES_MAX 8
struct rule {
    char prefix[384];
    char part[112];
    uint32_t calls;
    int32_t error;
    int32_t after;
    int32_t times;
    uint32_t seen;
    uint32_t hits;
    uint32_t unused[2];
};
struct control {
    uint32_t count;
    uint32_t unused[3];
    struct rule rules[RULES_MAX];
};

static volatile struct control *control;

__attribute__((constructor)) static void attach(void) {
    const char *path = getenv("FAULTY_DISK");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *place = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (place != MAP_FAILED)
        control = place;
}

/* The errno of the rule that this call runs into, or 0. */
static int fault(const char *path, uint32_t call) {
    uint32_t count = control->count;
    for (uint32_t i = 0; i < count && i < RULES_MAX; i++) {
        struct rule *rule = (struct rule *)&control->rules[i];
        if (!(rule->calls & call) || strncmp(path, rule->prefix, strlen(rule->prefix)) || !strstr(path, rule->part))
            continue;
        if ((int32_t)__atomic_fetch_add(&rule->seen, 1, __ATOMIC_SEQ_CST) < rule->after)
            continue;
        uint32_t hits = __atomic_fetch_add(&rule->hits, 1, __ATOMIC_SEQ_CST);
        if (rule->times && hits >= (uint32_t)rule->times)
            continue;
        return rule->error;
    }
    return 0;
}

static int path_fault(int folder, const char *path, uint32_t call) {
    if (!control || !control->count || (path[0] != '/' && folder == AT_FDCWD))
        return 0;
    if (path[0] == '/')
        return fault(path, call);
    char link[64], whole[PATH_MAX + 512];
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, whole, PATH_MAX);
    if (length < 0)
        return 0;
    snprintf(whole + length, sizeof whole - length, "/%s", path);
    return fault(whole, call);
}

static int fd_fault(int fd, uint32_t call) {
    if (!control || !control->count || fd <= 2)
        return 0;
    char link[64], path[PATH_MAX + 1];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX);
    if (length <= 0 || path[0] != '/')
        return 0;
    path[length] = 0;
    return fault(path, call);
}

#define FAIL(found)        \
    do {                   \
        int error = found; \
        if (error) {       \
            errno = error; \
            return -1;     \
        }                  \
    } while (0)

#define ON_FD(kind, result, name, parameters, arguments) \
    result name parameters {                             \
        static result(*real) parameters;                 \
        if (!real)                                       \
            real = dlsym(RTLD_NEXT, #name);              \
        FAIL(fd_fault(fd, kind));                        \
        return real arguments;                           \
    }

ON_FD(READ, ssize_t, read, (int fd, void *data, size_t size), (fd, data, size))
ON_FD(READ, ssize_t, pread, (int fd, void *data, size_t size, off_t at), (fd, data, size, at))
ON_FD(READ, ssize_t, pread64, (int fd, void *data, size_t size, off64_t at), (fd, data, size, at))
ON_FD(READ, ssize_t, preadv, (int fd, const struct iovec *v, int n, off_t at), (fd, v, n, at))
ON_FD(READ, ssize_t, preadv64, (int fd, const struct iovec *v, int n, off64_t at), (fd, v, n, at))
ON_FD(READ, ssize_t, preadv2, (int fd, const struct iovec *v, int n, off_t at, int f), (fd, v, n, at, f))
ON_FD(READ, ssize_t, preadv64v2, (int fd, const struct iovec *v, int n, off64_t at, int f), (fd, v, n, at, f))
ON_FD(WRITE, ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size))
ON_FD(WRITE, ssize_t, writev, (int fd, const struct iovec *v, int n), (fd, v, n))
ON_FD(WRITE, ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
ON_FD(WRITE, ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
ON_FD(WRITE, ssize_t, pwritev, (int fd, const struct iovec *v, int n, off_t at), (fd, v, n, at))
ON_FD(WRITE, ssize_t, pwritev64, (int fd, const struct iovec *v, int n, off64_t at), (fd, v, n, at))
ON_FD(WRITE, ssize_t, pwritev2, (int fd, const struct iovec *v, int n, off_t at, int f), (fd, v, n, at, f))
ON_FD(WRITE, ssize_t, pwritev64v2, (int fd, const struct iovec *v, int n, off64_t at, int f), (fd, v, n, at, f))
ON_FD(SYNC, int, fsync, (int fd), (fd))
ON_FD(SYNC, int, fdatasync, (int fd), (fd))
ON_FD(TRUNCATE, int, ftruncate, (int fd, off_t size), (fd, size))
ON_FD(TRUNCATE, int, ftruncate64, (int fd, off64_t size), (fd, size))

/* A file that is there and is opened for writing fails as CREATE only on a disk that can only be read. */
static int open_fault(int folder, const char *path, int flags) {
    if (!control || !control->count)
        return 0;
    int found = path_fault(folder, path, OPEN);
    if (!found && (flags & O_CREAT) && faccessat(folder, path, F_OK, 0) != 0)
        found = path_fault(folder, path, CREATE);
    if (!found && (flags & (O_WRONLY | O_RDWR))) {
        found = path_fault(folder, path, CREATE);
        if (found != EROFS)
            found = 0;
    }
    return found;
}

#define OPENER(name)                                                \
    int name(const char *path, int flags, ...) {                    \
        static int (*real)(const char *, int, ...);                 \
        if (!real)                                                  \
            real = dlsym(RTLD_NEXT, #name);                         \
        va_list more;                                               \
        va_start(more, flags);                                      \
        mode_t mode = va_arg(more, int);                            \
        va_end(more);                                               \
        FAIL(open_fault(AT_FDCWD, path, flags));                    \
        return real(path, flags, mode);                             \
    }
#define OPENER_AT(name)                                             \
    int name(int folder, const char *path, int flags, ...) {        \
        static int (*real)(int, const char *, int, ...);            \
        if (!real)                                                  \
            real = dlsym(RTLD_NEXT, #name);                         \
        va_list more;                                               \
        va_start(more, flags);                                      \
        mode_t mode = va_arg(more, int);                            \
        va_end(more);                                               \
        FAIL(open_fault(folder, path, flags));                      \
        return real(folder, path, flags, mode);                     \
    }
OPENER(open)
OPENER(open64)
OPENER_AT(openat)
OPENER_AT(openat64)

#define ON_PATH(kind, name, place, parameters, arguments) \
    int name parameters {                                 \
        static int(*real) parameters;                     \
        if (!real)                                        \
            real = dlsym(RTLD_NEXT, #name);               \
        FAIL(place);                                      \
        return real arguments;                            \
    }
ON_PATH(RENAME, rename, path_fault(AT_FDCWD, to, RENAME), (const char *from, const char *to), (from, to))
ON_PATH(RENAME, renameat, path_fault(tf, to, RENAME), (int ff, const char *from, int tf, const char *to),
        (ff, from, tf, to))
ON_PATH(UNLINK, unlink, path_fault(AT_FDCWD, path, UNLINK), (const char *path), (path))
ON_PATH(UNLINK, unlinkat, path_fault(folder, path, UNLINK), (int folder, const char *path, int flags),
        (folder, path, flags))
ON_PATH(UNLINK, rmdir, path_fault(AT_FDCWD, path, UNLINK), (const char *path), (path))
/* The kernel says that a folder exists before it says that the disk is full. */
static int mkdir_fault(int folder, const char *path) {
    if (!control || !control->count || faccessat(folder, path, F_OK, 0) == 0)
        return 0;
    return path_fault(folder, path, MKDIR);
}
ON_PATH(MKDIR, mkdir, mkdir_fault(AT_FDCWD, path), (const char *path, mode_t mode), (path, mode))
ON_PATH(MKDIR, mkdirat, mkdir_fault(folder, path), (int folder, const char *path, mode_t mode),
        (folder, path, mode))

/* A full disk says so, too. */
#define SPACE_OF(name, type)                                        \
    int name(const char *path, struct type *space) {                \
        static int (*real)(const char *, struct type *);            \
        if (!real)                                                  \
            real = dlsym(RTLD_NEXT, #name);                         \
        int error = path_fault(AT_FDCWD, path, SPACE);              \
        if (error && error != ENOSPC) {                             \
            errno = error;                                          \
            return -1;                                              \
        }                                                           \
        int result = real(path, space);                             \
        if (error && !result)                                       \
            space->f_bavail = space->f_bfree = 0;                   \
        return result;                                              \
    }
SPACE_OF(statvfs, statvfs)
SPACE_OF(statvfs64, statvfs64)
