/* Preloaded into a process, this library has no look-up of a host name end as long as the file
   $SILENT_NAMES exists, and makes the file $SILENT_NAMES.asked when one begins meanwhile. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef int lookup(const char *, const char *, const struct addrinfo *, struct addrinfo **);

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **result) {
    const char *file = getenv("SILENT_NAMES");
    char asked[4096];
    snprintf(asked, sizeof asked, "%s.asked", file);
    while (access(file, F_OK) == 0) {
        close(open(asked, O_CREAT | O_WRONLY, 0600));
        usleep(10 * 1000);
    }
    return ((lookup *)dlsym(RTLD_NEXT, "getaddrinfo"))(node, service, hints, result);
}
