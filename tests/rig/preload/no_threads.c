/* Preloaded into a process, this library can make the start of threads fail. As soon as the file
 * that THREADS_LEFT names exists, only as many more threads can start as the file says. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

typedef int create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *with) {
    static int started = 0;
    const char *path = getenv("THREADS_LEFT");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        char text[32] = {0};
        ssize_t length = read(file, text, sizeof text - 1);
        close(file);
        if (__atomic_fetch_add(&started, 1, __ATOMIC_SEQ_CST) >= (length > 0 ? atoi(text) : 0)) {
            return EAGAIN;
        }
    }
    return ((create *)dlsym(RTLD_NEXT, "pthread_create"))(thread, attributes, run, with);
}
