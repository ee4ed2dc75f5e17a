/* Faults of a disk and a clock, for the tests: loaded into a process with LD_PRELOAD, told what to do by fault_plan().

   Calls that change a file below `below` are counted, whoever makes them (Python, SQLite, safetensors, ...). The n-th
   one kills the process, in the middle of what it writes, or fails with an error; with `lasting`, all after it fail too.
   A disk that is full (ENOSPC) still takes what needs no room: removing, renaming, cutting, syncing. Each counted call
   is written to the file `trace`, so that its last line says where a process was killed. fault_clock() moves the wall
   clock. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define KILL -1

static char below[PATH_MAX];
static long count = 0, target = 0, offset = 0;
static int error_number = 0, lasting = 0, trace = -1;

#define NEXT(name) __typeof__(&name) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

/* The n-th change of a file below `folder` (0: none) ends in SIGKILL (-1) or in the given errno. */
void fault_plan(const char *folder, long n, int error, int for_good, const char *trace_file) {
    trace = syscall(SYS_openat, AT_FDCWD, trace_file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    snprintf(below, sizeof below, "%s", folder);
    count = 0, target = n, error_number = error, lasting = for_good;
}
void fault_clock(long seconds) { offset = seconds; }

static int is_below(const char *path) {
    size_t length = strlen(below);
    return length && path && strncmp(path, below, length) == 0 && (path[length] == '/' || !path[length]);
}

/* Whether this call meets the plan. Kills at once, unless `half` asks to be let write half of its bytes before. */
static int met(const char *call, const char *path, int needs_room, int half) {
    char line[PATH_MAX + 16];
    if (!is_below(path)) return 0;
    count++;
    int length = snprintf(line, sizeof line, "%s %s\n", call, path + strlen(below));
    if (!target || count <= target) syscall(SYS_write, trace, line, length);
    if (!target || count < target || (count > target && !lasting)) return 0;
    if (error_number == ENOSPC && !needs_room) return 0;
    if (error_number == KILL && !half) kill(getpid(), SIGKILL);
    errno = error_number;
    return 1;
}

static const char *path_of(int fd, char *path) {
    char link[64];
    if (!below[0]) return NULL;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = 0;
    return path;
}

#define OF(fd) char _path[PATH_MAX]; const char *path = path_of(fd, _path)

static int opens(const char *path, int flags) {
    int writes = flags & (O_CREAT | O_TRUNC | O_WRONLY | O_RDWR);
    return writes && met("open", path, flags & O_CREAT && access(path, F_OK), 0);
}

#define MODE mode_t mode = 0; va_list list; va_start(list, flags); if (flags & (O_CREAT | __O_TMPFILE)) mode = va_arg(list, mode_t); va_end(list)

int open(const char *path, int flags, ...) { MODE; NEXT(open); return opens(path, flags) ? -1 : next(path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE; NEXT(open64); return opens(path, flags) ? -1 : next(path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE; NEXT(openat); return opens(path, flags) ? -1 : next(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE; NEXT(openat64); return opens(path, flags) ? -1 : next(at, path, flags, mode); }

#define TORN(half) do { if (error_number == KILL) { half; kill(getpid(), SIGKILL); } return -1; } while (0)

ssize_t write(int fd, const void *bytes, size_t size) {
    OF(fd); NEXT(write);
    if (met("write", path, 1, 1)) TORN(next(fd, bytes, size / 2));
    return next(fd, bytes, size);
}
ssize_t pwrite(int fd, const void *bytes, size_t size, off_t at) {
    OF(fd); NEXT(pwrite);
    if (met("write", path, 1, 1)) TORN(next(fd, bytes, size / 2, at));
    return next(fd, bytes, size, at);
}
ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t at) {
    OF(fd); NEXT(pwrite64);
    if (met("write", path, 1, 1)) TORN(next(fd, bytes, size / 2, at));
    return next(fd, bytes, size, at);
}
struct iovec;
ssize_t writev(int fd, const struct iovec *parts, int number) {
    OF(fd); NEXT(writev);
    if (met("write", path, 1, 1)) TORN(next(fd, parts, number / 2));
    return next(fd, parts, number);
}
int fsync(int fd) { OF(fd); NEXT(fsync); return met("fsync", path, 0, 0) ? -1 : next(fd); }
int fdatasync(int fd) { OF(fd); NEXT(fdatasync); return met("fsync", path, 0, 0) ? -1 : next(fd); }
int ftruncate(int fd, off_t size) { OF(fd); NEXT(ftruncate); return met("truncate", path, 0, 0) ? -1 : next(fd, size); }
int ftruncate64(int fd, off64_t size) { OF(fd); NEXT(ftruncate64); return met("truncate", path, 0, 0) ? -1 : next(fd, size); }
int posix_fallocate(int fd, off_t at, off_t size) { OF(fd); NEXT(posix_fallocate); return met("allocate", path, 1, 0) ? errno : next(fd, at, size); }
int posix_fallocate64(int fd, off64_t at, off64_t size) { OF(fd); NEXT(posix_fallocate64); return met("allocate", path, 1, 0) ? errno : next(fd, at, size); }
int rename(const char *from, const char *path) { NEXT(rename); return met("rename", path, 0, 0) ? -1 : next(from, path); }
int unlink(const char *path) { NEXT(unlink); return met("unlink", path, 0, 0) ? -1 : next(path); }
int mkdir(const char *path, mode_t mode) { NEXT(mkdir); return met("mkdir", path, 1, 0) ? -1 : next(path, mode); }

int clock_gettime(clockid_t clock, struct timespec *now) {
    NEXT(clock_gettime);
    int failed = next(clock, now);
    if (!failed && clock == CLOCK_REALTIME) now->tv_sec += offset;
    return failed;
}
int gettimeofday(struct timeval *now, void *zone) {
    NEXT(gettimeofday);
    int failed = next(now, zone);
    if (!failed) now->tv_sec += offset;
    return failed;
}
time_t time(time_t *now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now) *now = precise.tv_sec;
    return precise.tv_sec;
}
