/* A disk that fails, hangs, shows things late, or whose locks lie; and a clock that jumps. For LD_PRELOAD, in tests only.
 *
 * Only calls of CPython on paths below DISK_ROOT are touched; the real filesystem does the work, so that exclusive
 * creation is decided truly. A fork shares the counters: a process tree is one mount.
 *
 *   DISK_ROOT    absolute path; calls elsewhere pass untouched, and so do all calls without it
 *   DISK_FAULTS  op:effect:first:count[:part],...  effect is a number of errno or a hang, `h` and seconds; `first` counts
 *                from 1; count 0 is for ever; `part` is in the path. Ops: open create read write rename link fsync mkdir
 *                stat readdir unlink symlink chmod utime lock
 *   DISK_LATE_S  what other mounts created less than so many seconds ago is not there for open, stat and listings
 *   DISK_OWN_LATE  set: what this mount renamed or linked is late for itself, too
 *   DISK_LOCKS_LIE  set: every lock is granted
 *   DISK_LOG     file to which each call is appended, one line: op and path
 *   CLOCK_JUMPS  seconds[,seconds...]: the n-th reading of the wall clock is shifted by the n-th of these, then by them
 *                again from the first on
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define FAULTS 64
#define OWN 65536

struct fault { char op[12]; int error; double hang; int first, count; char part[128]; };
struct shared { int calls[FAULTS]; unsigned readings; unsigned owned; ino_t own[OWN]; };

static struct fault faults[FAULTS];
static int fault_count, locks_lie, own_late, log_fd = -1, jump_count;
static double late_s, jumps[64];
static char root[PATH_MAX];
static size_t root_length;
static struct shared *shared;
static __thread int busy;

#define REAL(name) ({ static __typeof__(&name) real_; if (!real_) real_ = dlsym(RTLD_NEXT, #name); real_; })

static void add_fault(char *text) {
    struct fault *one = &faults[fault_count];
    char *rest = text, *word;
    if (fault_count == FAULTS || !(word = strsep(&rest, ":"))) return;
    snprintf(one->op, sizeof one->op, "%s", word);
    if (!(word = strsep(&rest, ":"))) return;
    if (*word == 'h') one->hang = atof(word + 1); else one->error = atoi(word);
    one->first = (word = strsep(&rest, ":")) ? atoi(word) : 1;
    one->count = (word = strsep(&rest, ":")) ? atoi(word) : 0;
    if (rest) snprintf(one->part, sizeof one->part, "%s", rest);
    fault_count++;
}

/* Put other faults in the place of those that are set; counting begins anew. For tests that try many in one process. */
void disk_arm(const char *text) {
    char *copy = strdup(text), *word;
    fault_count = 0;
    memset(faults, 0, sizeof faults);
    memset(shared->calls, 0, sizeof shared->calls);
    while ((word = strsep(&copy, ","))) if (*word) add_fault(word);
}

/* Say how often the n-th fault's call was made since it was set. */
int disk_calls(int n) { return shared->calls[n]; }

__attribute__((constructor)) static void begin(void) {
    const char *text = getenv("DISK_ROOT");
    char *copy, *word;
    if (text) { snprintf(root, sizeof root, "%s", text); root_length = strlen(root); }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) abort();
    if ((text = getenv("DISK_FAULTS"))) disk_arm(text);
    if ((text = getenv("DISK_LATE_S"))) late_s = atof(text);
    if ((text = getenv("CLOCK_JUMPS")))
        for (copy = strdup(text); jump_count < 64 && (word = strsep(&copy, ",")); ) jumps[jump_count++] = atof(word);
    locks_lie = getenv("DISK_LOCKS_LIE") != NULL;
    own_late = getenv("DISK_OWN_LATE") != NULL;
    if ((text = getenv("DISK_LOG"))) log_fd = syscall(SYS_openat, AT_FDCWD, text, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
}

/* Give the absolute path when it is below the root, else nothing. */
static const char *within(int folder, const char *path, char *space) {
    if (!root_length || busy || !path) return NULL;
    if (*path == '/') snprintf(space, PATH_MAX, "%s", path);
    else {
        char link[64]; ssize_t length;
        snprintf(link, sizeof link, folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", folder);
        if ((length = syscall(SYS_readlinkat, AT_FDCWD, link, space, PATH_MAX - 1)) < 0) return NULL;
        space[length] = 0;
        if (*path) snprintf(space + length, PATH_MAX - length, "/%s", path);
    }
    return !strncmp(space, root, root_length) && (space[root_length] == '/' || !space[root_length]) ? space : NULL;
}

static const char *of_descriptor(int descriptor, char *space) {
    return root_length && !busy ? within(descriptor, "", space) : NULL;
}

/* Take note of a call; -1 with errno when it is to fail. */
static int strike(const char *op, const char *path) {
    if (!path) return 0;
    if (log_fd >= 0) {
        char line[PATH_MAX + 16];
        int length = snprintf(line, sizeof line, "%s %s\n", op, path);
        if (syscall(SYS_write, log_fd, line, length) < 0) abort();
    }
    for (int n = 0; n < fault_count; n++) {
        struct fault *one = &faults[n];
        if (strcmp(one->op, op) || (*one->part && !strstr(path, one->part))) continue;
        int call = __sync_add_and_fetch(&shared->calls[n], 1);
        if (call < one->first || (one->count && call >= one->first + one->count)) continue;
        if (one->hang > 0) { struct timespec time = {(time_t)one->hang, 0}; syscall(SYS_nanosleep, &time, NULL); continue; }
        errno = one->error;
        return -1;
    }
    return 0;
}

static void own(const char *path, int folder, const char *given) {
    struct stat status;
    int before = errno;
    if (!path || late_s <= 0) return;
    if (!syscall(SYS_newfstatat, folder, given, &status, AT_SYMLINK_NOFOLLOW)) {
        unsigned at = __sync_fetch_and_add(&shared->owned, 1);
        if (at < OWN) shared->own[at] = status.st_ino;
    }
    errno = before;
}

static int is_own(ino_t number) {
    for (unsigned n = 0; n < shared->owned && n < OWN; n++) if (shared->own[n] == number) return 1;
    return 0;
}

/* A directory's change time moves with every entry made in it, so its birth counts; a file's moves with its name. */
static int is_late(int folder, const char *given) {
    struct statx found;
    struct timespec now;
    int before = errno, late = 0;
    if (late_s > 0 && !syscall(SYS_statx, folder, given, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, &found)) {
        int directory = S_ISDIR(found.stx_mode);
        struct statx_timestamp *time = directory ? &found.stx_btime : &found.stx_ctime;
        syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
        double age = now.tv_sec - time->tv_sec + (now.tv_nsec - (double)time->tv_nsec) / 1e9;
        late = (!directory || found.stx_mask & STATX_BTIME) && age < late_s && !is_own(found.stx_ino);
    }
    errno = before;
    return late;
}

static void disown(int folder, const char *given) {
    struct stat status;
    if (syscall(SYS_newfstatat, folder, given, &status, AT_SYMLINK_NOFOLLOW)) return;
    for (unsigned n = 0; n < shared->owned && n < OWN; n++) if (shared->own[n] == status.st_ino) shared->own[n] = 0;
}

static void renamed(const char *path, int folder, const char *given) {
    if (own_late) { int before = errno; disown(folder, given); errno = before; } else own(path, folder, given);
}

static int opened(int folder, const char *given, int flags, mode_t mode) {
    char space[PATH_MAX];
    const char *path = within(folder, given, space);
    int creates = (flags & O_CREAT) != 0;
    if (path && strcmp(path, root)) {
        if (strike(creates ? "create" : "open", path)) return -1;
        if (!(flags & O_EXCL) && is_late(folder, given)) { errno = ENOENT; return -1; }
    } else if (strike("open", path)) return -1;
    int descriptor = syscall(SYS_openat, folder, given, flags, mode);
    if (descriptor >= 0 && creates) own(path, folder, given);
    return descriptor;
}

#define MODE(flags) ({ mode_t mode_ = 0; if ((flags) & (O_CREAT | __O_TMPFILE)) { va_list list; va_start(list, flags); \
    mode_ = va_arg(list, mode_t); va_end(list); } mode_; })

int open(const char *path, int flags, ...) { return opened(AT_FDCWD, path, flags, MODE(flags)); }
int open64(const char *path, int flags, ...) { return opened(AT_FDCWD, path, flags, MODE(flags)); }
int openat(int folder, const char *path, int flags, ...) { return opened(folder, path, flags, MODE(flags)); }
int openat64(int folder, const char *path, int flags, ...) { return opened(folder, path, flags, MODE(flags)); }

static int looked(int folder, const char *given) {
    char space[PATH_MAX];
    const char *path = within(folder, given, space);
    if (strike("stat", path)) return -1;
    if (path && strcmp(path, root) && is_late(folder, given)) { errno = ENOENT; return -1; }
    return 0;
}

#define LOOK(name, structure) \
    int name(const char *path, struct structure *found) { return looked(AT_FDCWD, path) ? -1 : REAL(name)(path, found); }
LOOK(stat, stat) LOOK(stat64, stat64) LOOK(lstat, stat) LOOK(lstat64, stat64)
int fstatat64(int folder, const char *path, struct stat64 *found, int flags) {
    return looked(folder, path) ? -1 : REAL(fstatat64)(folder, path, found, flags);
}
int fstatat(int folder, const char *path, struct stat *found, int flags) {
    return looked(folder, path) ? -1 : REAL(fstatat)(folder, path, found, flags);
}
int access(const char *path, int how) { return looked(AT_FDCWD, path) ? -1 : REAL(access)(path, how); }

/* Calls on descriptors of files below the root. */
#define ON_FD(kind, name, op, declared, given) kind name declared { char space[PATH_MAX]; \
    return strike(op, of_descriptor(descriptor, space)) ? -1 : REAL(name) given; }
ON_FD(ssize_t, read, "read", (int descriptor, void *to, size_t size), (descriptor, to, size))
ON_FD(ssize_t, readv, "read", (int descriptor, const struct iovec *to, int count), (descriptor, to, count))
ON_FD(ssize_t, pread64, "read", (int descriptor, void *to, size_t size, off64_t at), (descriptor, to, size, at))
ON_FD(ssize_t, write, "write", (int descriptor, const void *from, size_t size), (descriptor, from, size))
ON_FD(ssize_t, writev, "write", (int descriptor, const struct iovec *from, int count), (descriptor, from, count))
ON_FD(ssize_t, pwrite64, "write", (int descriptor, const void *from, size_t size, off64_t at), (descriptor, from, size, at))
ON_FD(int, ftruncate64, "write", (int descriptor, off64_t size), (descriptor, size))
ON_FD(int, fsync, "fsync", (int descriptor), (descriptor))
ON_FD(int, fdatasync, "fsync", (int descriptor), (descriptor))
ON_FD(int, fchmod, "chmod", (int descriptor, mode_t mode), (descriptor, mode))
ON_FD(int, futimens, "utime", (int descriptor, const struct timespec times[2]), (descriptor, times))
ON_FD(ssize_t, sendfile64, "write", (int descriptor, int from, off64_t *at, size_t size), (descriptor, from, at, size))

int chmod(const char *path, mode_t mode) {
    char space[PATH_MAX];
    return strike("chmod", within(AT_FDCWD, path, space)) ? -1 : REAL(chmod)(path, mode);
}
int utimensat(int folder, const char *path, const struct timespec times[2], int flags) {
    char space[PATH_MAX];
    return strike("utime", within(folder, path, space)) ? -1 : REAL(utimensat)(folder, path, times, flags);
}

static int moved(int from_folder, const char *from, int folder, const char *to) {
    char space[PATH_MAX], other[PATH_MAX];
    const char *path = within(folder, to, space);
    if (strike("rename", path ? path : within(from_folder, from, other))) return -1;
    int done = syscall(SYS_renameat, from_folder, from, folder, to);
    if (!done) renamed(path, folder, to);
    return done;
}
int rename(const char *from, const char *to) { return moved(AT_FDCWD, from, AT_FDCWD, to); }
int renameat(int from_folder, const char *from, int folder, const char *to) { return moved(from_folder, from, folder, to); }

static int linked(int from_folder, const char *from, int folder, const char *to, int flags) {
    char space[PATH_MAX];
    const char *path = within(folder, to, space);
    if (strike("link", path)) return -1;
    int done = syscall(SYS_linkat, from_folder, from, folder, to, flags);
    if (!done) renamed(path, folder, to);
    return done;
}
int link(const char *from, const char *to) { return linked(AT_FDCWD, from, AT_FDCWD, to, 0); }
int linkat(int from_folder, const char *from, int folder, const char *to, int flags) {
    return linked(from_folder, from, folder, to, flags);
}

int symlink(const char *target, const char *path) {
    char space[PATH_MAX];
    const char *place = within(AT_FDCWD, path, space);
    if (strike("symlink", place)) return -1;
    int done = REAL(symlink)(target, path);
    if (!done) own(place, AT_FDCWD, path);
    return done;
}

static int made(int folder, const char *given, mode_t mode) {
    char space[PATH_MAX];
    const char *path = within(folder, given, space);
    if (strike("mkdir", path)) return -1;
    int done = syscall(SYS_mkdirat, folder, given, mode);
    if (!done) own(path, folder, given);
    return done;
}
int mkdir(const char *path, mode_t mode) { return made(AT_FDCWD, path, mode); }
int mkdirat(int folder, const char *path, mode_t mode) { return made(folder, path, mode); }

static int removed(int folder, const char *given, int flags) {
    char space[PATH_MAX];
    if (strike("unlink", within(folder, given, space))) return -1;
    return syscall(SYS_unlinkat, folder, given, flags);
}
int unlink(const char *path) { return removed(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return removed(AT_FDCWD, path, AT_REMOVEDIR); }
int unlinkat(int folder, const char *path, int flags) { return removed(folder, path, flags); }

DIR *opendir(const char *path) {
    char space[PATH_MAX];
    const char *place = within(AT_FDCWD, path, space);
    if (strike("open", place)) return NULL;
    if (place && strcmp(place, root) && is_late(AT_FDCWD, path)) { errno = ENOENT; return NULL; }
    return REAL(opendir)(path);
}
struct dirent64 *readdir64(DIR *folder) {
    char space[PATH_MAX];
    struct dirent64 *found;
    const char *path = of_descriptor(dirfd(folder), space);
    if (strike("readdir", path)) return NULL;
    do found = REAL(readdir64)(folder);
    while (found && path && strcmp(found->d_name, ".") && strcmp(found->d_name, "..") && is_late(dirfd(folder), found->d_name));
    return found;
}

int flock(int descriptor, int operation) {
    char space[PATH_MAX];
    const char *path = of_descriptor(descriptor, space);
    if (strike("lock", path)) return -1;
    return path && locks_lie ? 0 : REAL(flock)(descriptor, operation);
}
int fcntl64(int descriptor, int command, ...) {
    char space[PATH_MAX];
    va_list list;
    va_start(list, command);
    void *value = va_arg(list, void *);
    va_end(list);
    if ((command == F_SETLK || command == F_SETLKW) && of_descriptor(descriptor, space)) {
        if (strike("lock", space)) return -1;
        if (locks_lie) return 0;
    }
    return REAL(fcntl64)(descriptor, command, value);
}

static double jump(void) {
    return jump_count ? jumps[__sync_fetch_and_add(&shared->readings, 1) % jump_count] : 0;
}
int clock_gettime(clockid_t which, struct timespec *time) {
    int done = syscall(SYS_clock_gettime, which, time);
    if (!done && which == CLOCK_REALTIME) time->tv_sec += (time_t)jump();
    return done;
}
time_t time(time_t *to) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (to) *to = now.tv_sec;
    return now.tv_sec;
}
int gettimeofday(struct timeval *restrict to, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    to->tv_sec = now.tv_sec;
    to->tv_usec = now.tv_nsec / 1000;
    return 0;
}
