/* A library for LD_PRELOAD: it counts the file operations below a folder, and disturbs one of them.

   A process calls layer_arm() and from then on each operation on a path that begins with `prefix` and
   contains `part`, or on a descriptor of such a path, has the next number if its class is in `classes`.
   Operation `at` is disturbed as `action` says. The layer reaches what goes through the C library: Python,
   tensorstore and ArrayRecord alike. It does not reach fopen(), mmap() and system calls made directly.

   layer_jump() moves the wall clock that Python reads; libraries in C++ keep the system's clock, by which
   the kernel measures their waits. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { OPEN = 1, CREATE = 2, READ = 4, WRITE = 8, SYNC = 16, RENAME = 32, REMOVE = 64, MAKE = 128, STAT = 256, LIST = 512 };
enum { COUNT, FAIL, KILL, TERMINATE, HALF, SHORT, TORN };

#define MAX_DESCRIPTORS 65536
#define CHANGES (CREATE | WRITE | SYNC | RENAME | REMOVE | MAKE)

static struct {
    char prefix[PATH_MAX], part[NAME_MAX];
    unsigned classes;
    long at;
    int action, error, lasting, log;
} plan;
static atomic_int armed;
static atomic_long counted;
static atomic_int failing;
static _Atomic(char *) paths[MAX_DESCRIPTORS];
static atomic_llong jump_ns;

/* The function of that name which the C library has. */
#define REAL(name)                                                                       \
    ({                                                                                   \
        static __typeof__(&name) real;                                                   \
        if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name);                    \
        real;                                                                            \
    })

/* Starts to count. A log of -1 is none; `lasting` lets all changes after the disturbed operation fail too. */
void layer_arm(const char *prefix, const char *part, unsigned classes, long at, int action, int error,
               int lasting, int log) {
    snprintf(plan.prefix, sizeof plan.prefix, "%s", prefix);
    snprintf(plan.part, sizeof plan.part, "%s", part);
    plan.classes = classes, plan.at = at, plan.action = action;
    plan.error = error, plan.lasting = lasting, plan.log = log;
    atomic_store(&counted, 0), atomic_store(&failing, 0), atomic_store(&armed, 1);
}

long layer_counted(void) { return atomic_load(&counted); }

void layer_jump(long long ns) { atomic_store(&jump_ns, ns); }

static int is_watched(const char *path) {
    if (!path) return 0;
    return !strncmp(path, plan.prefix, strlen(plan.prefix)) && strstr(path + strlen(plan.prefix), plan.part);
}

static const char *resolved(int folder, const char *path, char *buffer) {
    if (!path || *path == '/') return path;
    char base[PATH_MAX / 2] = "";
    if (folder == AT_FDCWD) {
        if (!getcwd(base, sizeof base)) return path;
    } else if (folder >= 0 && folder < MAX_DESCRIPTORS && paths[folder]) {
        snprintf(base, sizeof base, "%s", (char *)paths[folder]);
    }
    snprintf(buffer, PATH_MAX, "%s/%s", base, path);
    return buffer;
}

static void note(long number, unsigned class, const char *what, const char *path) {
    char line[PATH_MAX + 64];
    int size = snprintf(line, sizeof line, "%ld %u %s %s\n", number, class, what, path);
    if (plan.log >= 0) (void)!REAL(write)(plan.log, line, size);
}

/* Numbers an operation. Returns what is to be done to it: COUNT for nothing. Does not return from KILL. */
static int disturb(unsigned class, const char *what, const char *path) {
    if (!atomic_load(&armed) || !is_watched(path)) return COUNT;
    if (atomic_load(&failing) && (class & CHANGES & plan.classes)) return errno = plan.error, FAIL;
    if (!(class & plan.classes)) return COUNT;
    long number = atomic_fetch_add(&counted, 1) + 1;
    if (plan.at <= 0) note(number, class, what, path);
    if (number != plan.at) return COUNT;
    note(number, class, what, path);
    if (plan.action == KILL || (plan.action == TORN && class != WRITE)) kill(getpid(), SIGKILL);
    if (plan.action == TERMINATE) kill(getpid(), SIGTERM);
    if (plan.lasting) atomic_store(&failing, 1);
    if ((plan.action == HALF || plan.action == SHORT) && class != WRITE) return errno = plan.error, FAIL;
    if (plan.action == HALF) atomic_store(&failing, 1);
    return errno = plan.error, plan.action == TERMINATE ? COUNT : plan.action;
}

static const char *path_of(int descriptor) {
    return descriptor >= 0 && descriptor < MAX_DESCRIPTORS ? paths[descriptor] : NULL;
}

static int remember(int descriptor, const char *path) {
    if (descriptor >= 0 && descriptor < MAX_DESCRIPTORS && atomic_load(&armed) && is_watched(path))
        free(atomic_exchange(&paths[descriptor], strdup(path)));
    return descriptor;
}

static unsigned class_of_open(int flags) {
    return flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC) ? CREATE : OPEN;
}

#define OPENS(name)                                                                      \
    int name(const char *path, int flags, ...) {                                         \
        va_list rest;                                                                    \
        va_start(rest, flags);                                                           \
        mode_t mode = va_arg(rest, mode_t);                                              \
        va_end(rest);                                                                    \
        char buffer[PATH_MAX];                                                           \
        const char *full = resolved(AT_FDCWD, path, buffer);                             \
        if (disturb(class_of_open(flags), "open", full) != COUNT) return -1;             \
        return remember(REAL(name)(path, flags, mode), full);                            \
    }
OPENS(open)
OPENS(open64)

#define OPENS_AT(name)                                                                   \
    int name(int folder, const char *path, int flags, ...) {                             \
        va_list rest;                                                                    \
        va_start(rest, flags);                                                           \
        mode_t mode = va_arg(rest, mode_t);                                              \
        va_end(rest);                                                                    \
        char buffer[PATH_MAX];                                                           \
        const char *full = resolved(folder, path, buffer);                               \
        if (disturb(class_of_open(flags), "open", full) != COUNT) return -1;             \
        return remember(REAL(name)(folder, path, flags, mode), full);                    \
    }
OPENS_AT(openat)
OPENS_AT(openat64)

int close(int descriptor) {
    if (descriptor >= 0 && descriptor < MAX_DESCRIPTORS) free(atomic_exchange(&paths[descriptor], NULL));
    return REAL(close)(descriptor);
}

/* A system call on a descriptor that returns a number of bytes. */
#define READS(name, parameters, arguments)                                               \
    ssize_t name parameters {                                                            \
        if (disturb(READ, #name, path_of(descriptor)) != COUNT) return -1;               \
        return REAL(name) arguments;                                                     \
    }
READS(read, (int descriptor, void *data, size_t size), (descriptor, data, size))
READS(pread, (int descriptor, void *data, size_t size, off_t offset), (descriptor, data, size, offset))
READS(pread64, (int descriptor, void *data, size_t size, off64_t offset), (descriptor, data, size, offset))
READS(readv, (int descriptor, const struct iovec *parts, int count), (descriptor, parts, count))

#define WRITES(name, parameters, arguments, half)                                        \
    ssize_t name parameters {                                                            \
        int what = disturb(WRITE, #name, path_of(descriptor));                           \
        if (what == FAIL) return -1;                                                     \
        if (what == COUNT) return REAL(name) arguments;                                  \
        ssize_t written = REAL(name) half;                                               \
        if (what == TORN) kill(getpid(), SIGKILL);                                       \
        return written;                                                                  \
    }
#define HALF_OF(size) ((size) > 1 ? (size) / 2 : (size))
WRITES(write, (int descriptor, const void *data, size_t size), (descriptor, data, size),
       (descriptor, data, HALF_OF(size)))
WRITES(pwrite, (int descriptor, const void *data, size_t size, off_t offset), (descriptor, data, size, offset),
       (descriptor, data, HALF_OF(size), offset))
WRITES(pwrite64, (int descriptor, const void *data, size_t size, off64_t offset),
       (descriptor, data, size, offset), (descriptor, data, HALF_OF(size), offset))
WRITES(writev, (int descriptor, const struct iovec *parts, int count), (descriptor, parts, count),
       (descriptor, parts, HALF_OF(count)))

#define ON_DESCRIPTOR(name, class, parameters, arguments)                                \
    int name parameters {                                                                \
        if (disturb(class, #name, path_of(descriptor)) != COUNT) return -1;              \
        return REAL(name) arguments;                                                     \
    }
ON_DESCRIPTOR(fsync, SYNC, (int descriptor), (descriptor))
ON_DESCRIPTOR(fdatasync, SYNC, (int descriptor), (descriptor))
ON_DESCRIPTOR(ftruncate, WRITE, (int descriptor, off_t size), (descriptor, size))
ON_DESCRIPTOR(ftruncate64, WRITE, (int descriptor, off64_t size), (descriptor, size))

#define ON_PATH(name, class, folder, parameters, arguments)                              \
    int name parameters {                                                                \
        char buffer[PATH_MAX];                                                           \
        if (disturb(class, #name, resolved(folder, path, buffer)) != COUNT) return -1;   \
        return REAL(name) arguments;                                                     \
    }
ON_PATH(unlink, REMOVE, AT_FDCWD, (const char *path), (path))
ON_PATH(unlinkat, REMOVE, folder, (int folder, const char *path, int flags), (folder, path, flags))
ON_PATH(rmdir, REMOVE, AT_FDCWD, (const char *path), (path))
ON_PATH(mkdir, MAKE, AT_FDCWD, (const char *path, mode_t mode), (path, mode))
ON_PATH(mkdirat, MAKE, folder, (int folder, const char *path, mode_t mode), (folder, path, mode))
ON_PATH(stat, STAT, AT_FDCWD, (const char *path, struct stat *found), (path, found))
ON_PATH(stat64, STAT, AT_FDCWD, (const char *path, struct stat64 *found), (path, found))
ON_PATH(lstat, STAT, AT_FDCWD, (const char *path, struct stat *found), (path, found))
ON_PATH(lstat64, STAT, AT_FDCWD, (const char *path, struct stat64 *found), (path, found))
ON_PATH(fstatat, STAT, folder, (int folder, const char *path, struct stat *found, int flags),
        (folder, path, found, flags))
ON_PATH(fstatat64, STAT, folder, (int folder, const char *path, struct stat64 *found, int flags),
        (folder, path, found, flags))

/* Of a rename or link the new name counts, for it is what others will read. */
#define TO_PATH(name, folder, parameters, arguments)                                     \
    int name parameters {                                                                \
        char buffer[PATH_MAX];                                                           \
        if (disturb(RENAME, #name, resolved(folder, path, buffer)) != COUNT) return -1;  \
        return REAL(name) arguments;                                                     \
    }
TO_PATH(rename, AT_FDCWD, (const char *old, const char *path), (old, path))
TO_PATH(renameat, folder, (int old_folder, const char *old, int folder, const char *path),
        (old_folder, old, folder, path))
TO_PATH(link, AT_FDCWD, (const char *old, const char *path), (old, path))
TO_PATH(linkat, folder, (int old_folder, const char *old, int folder, const char *path, int flags),
        (old_folder, old, folder, path, flags))

DIR *opendir(const char *path) {
    char buffer[PATH_MAX];
    if (disturb(LIST, "opendir", resolved(AT_FDCWD, path, buffer)) != COUNT) return NULL;
    return REAL(opendir)(path);
}

static int find_python(struct dl_phdr_info *library, size_t size, void *found) {
    (void)size;
    uintptr_t *range = found;
    if (!strstr(library->dlpi_name, "libpython")) return 0;
    for (int i = 0; i < library->dlpi_phnum; i++) {
        uintptr_t start = library->dlpi_addr + library->dlpi_phdr[i].p_vaddr;
        if (library->dlpi_phdr[i].p_type == PT_LOAD && library->dlpi_phdr[i].p_flags & PF_X)
            range[0] = start, range[1] = start + library->dlpi_phdr[i].p_memsz;
    }
    return 1;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static uintptr_t python[2];
    int status = REAL(clock_gettime)(clock, now);
    long long ns = atomic_load(&jump_ns);
    if (status || !ns || clock != CLOCK_REALTIME) return status;
    uintptr_t caller = (uintptr_t)__builtin_return_address(0);
    if (!python[1]) dl_iterate_phdr(find_python, python);
    if (caller < python[0] || caller >= python[1]) return status;
    ns += now->tv_sec * 1000000000LL + now->tv_nsec;
    now->tv_sec = ns / 1000000000LL, now->tv_nsec = ns % 1000000000LL;
    return status;
}
