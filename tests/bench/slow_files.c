/* Add a delay to every operation on files under one directory, as a volume across a network has it.
 *
 * Preloaded by bench_store: SLOW_ROOT is the directory, SLOW_US the microseconds. An operation is what a server would
 * be asked: open, stat, readlink, a read of data, and one for each directory that is listed.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define FILES 65536
static unsigned char slow[FILES];
static char root[PATH_MAX];
static size_t root_length;
static struct timespec delay;
/* rsync changes into the directory that it reads, and names files from there. */
static int here_is_slow;

static void look_where_we_are(void)
{
    char here[PATH_MAX];
    here_is_slow = root_length && getcwd(here, sizeof here) && strncmp(here, root, root_length) == 0;
}

__attribute__((constructor)) static void start(void)
{
    const char *given = getenv("SLOW_ROOT"), *us = getenv("SLOW_US");
    long microseconds = us ? atol(us) : 0;
    if (given) {
        strncpy(root, given, sizeof root - 1);
        root_length = strlen(root);
    }
    delay.tv_sec = microseconds / 1000000;
    delay.tv_nsec = microseconds % 1000000 * 1000;
    look_where_we_are();
}

static void wait_a_little(void) { nanosleep(&delay, NULL); }

static int is_slow(int at, const char *path)
{
    if (!root_length || !path) return 0;
    if (path[0] == '/') return strncmp(path, root, root_length) == 0;
    return at >= 0 ? at < FILES && slow[at] : here_is_slow;
}

static void mark(int descriptor, int yes)
{
    if (descriptor >= 0 && descriptor < FILES) slow[descriptor] = yes;
}

#define REAL(name) ((__typeof__(&name))({ static void *found; if (!found) found = dlsym(RTLD_NEXT, #name); found; }))
#define MODE_OF(flags, mode) \
    do { if ((flags) & (O_CREAT | O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); } } while (0)

#define OPEN(name) \
    int name(const char *path, int flags, ...) \
    { \
        mode_t mode = 0; MODE_OF(flags, mode); \
        int yes = is_slow(-1, path); \
        if (yes) wait_a_little(); \
        int descriptor = REAL(name)(path, flags, mode); \
        mark(descriptor, yes); \
        return descriptor; \
    }
#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) \
    { \
        mode_t mode = 0; MODE_OF(flags, mode); \
        int yes = is_slow(at, path); \
        if (yes) wait_a_little(); \
        int descriptor = REAL(name)(at, path, flags, mode); \
        mark(descriptor, yes); \
        return descriptor; \
    }
int chdir(const char *path)
{
    int result = REAL(chdir)(path);
    look_where_we_are();
    return result;
}

int fchdir(int descriptor)
{
    int result = REAL(fchdir)(descriptor);
    look_where_we_are();
    return result;
}

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

#define STAT(name, type) \
    int name(const char *path, struct type *into) { if (is_slow(-1, path)) wait_a_little(); return REAL(name)(path, into); }
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)

#define STATAT(name, type) \
    int name(int at, const char *path, struct type *into, int flags) \
    { if (is_slow(at, path)) wait_a_little(); return REAL(name)(at, path, into, flags); }
STATAT(fstatat, stat)
STATAT(fstatat64, stat64)

int statx(int at, const char *path, int flags, unsigned mask, struct statx *into)
{
    if (is_slow(at, path)) wait_a_little();
    return REAL(statx)(at, path, flags, mask, into);
}

ssize_t readlink(const char *path, char *into, size_t size)
{
    if (is_slow(-1, path)) wait_a_little();
    return REAL(readlink)(path, into, size);
}

ssize_t readlinkat(int at, const char *path, char *into, size_t size)
{
    if (is_slow(at, path)) wait_a_little();
    return REAL(readlinkat)(at, path, into, size);
}

ssize_t read(int descriptor, void *into, size_t size)
{
    if (descriptor >= 0 && descriptor < FILES && slow[descriptor]) wait_a_little();
    return REAL(read)(descriptor, into, size);
}

ssize_t copy_file_range(int from, off_t *at, int to, off_t *there, size_t size, unsigned flags)
{
    if (from >= 0 && from < FILES && slow[from]) wait_a_little();
    return REAL(copy_file_range)(from, at, to, there, size, flags);
}

DIR *opendir(const char *path)
{
    int yes = is_slow(-1, path);
    if (yes) wait_a_little();
    DIR *found = REAL(opendir)(path);
    if (found) mark(dirfd(found), yes);
    return found;
}

DIR *fdopendir(int descriptor)
{
    if (descriptor >= 0 && descriptor < FILES && slow[descriptor]) wait_a_little();
    return REAL(fdopendir)(descriptor);
}

int close(int descriptor)
{
    mark(descriptor, 0);
    return REAL(close)(descriptor);
}
