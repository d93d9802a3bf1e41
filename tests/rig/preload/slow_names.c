/* Preloaded into a process, this library makes each look-up of a host name take 1.2 seconds. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <unistd.h>

typedef int lookup(const char *, const char *, const struct addrinfo *, struct addrinfo **);

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **result) {
    usleep(1200 * 1000);
    return ((lookup *)dlsym(RTLD_NEXT, "getaddrinfo"))(node, service, hints, result);
}
