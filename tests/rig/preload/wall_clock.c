/* Clocks that a test can set. Preloaded into a process, this library adds the seconds in one file
 * to the time of day, and the seconds in another file to the time since boot. It does not change
 * the clock that stops during suspend. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static time_t offset(const char *name) {
    char text[32] = {0};
    const char *path = getenv(name);
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) {
        return 0;
    }
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    return length > 0 ? (time_t)atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        now->tv_sec += offset("WALL_CLOCK_OFFSET");
    }
    if (result == 0 && clock == CLOCK_BOOTTIME) {
        now->tv_sec += offset("BOOT_CLOCK_OFFSET");
    }
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return result;
}

time_t time(time_t *out) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (out) {
        *out = exact.tv_sec;
    }
    return exact.tv_sec;
}
