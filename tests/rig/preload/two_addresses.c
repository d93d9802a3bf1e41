/* Preloaded into a process, this library gives the host name `twofold` two addresses: 127.0.0.2, and
 * then 127.0.0.1. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <string.h>

typedef int lookup(const char *, const char *, const struct addrinfo *, struct addrinfo **);

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **result) {
    lookup *real = (lookup *)dlsym(RTLD_NEXT, "getaddrinfo");
    if (node == NULL || strcmp(node, "twofold") != 0) {
        return real(node, service, hints, result);
    }
    struct addrinfo *second;
    int error = real("127.0.0.1", service, hints, &second);
    if (error == 0 && (error = real("127.0.0.2", service, hints, result)) == 0) {
        struct addrinfo *last = *result;
        while (last->ai_next != NULL) {
            last = last->ai_next;
        }
        last->ai_next = second;
    }
    return error;
}
